"""What the objects of a ControlServer look like, as plain JSON, and what is said about it: pure functions all of them.

``names`` and ``bootstrap`` say how things are called and what a server is told, ``pod`` and ``policies`` render what is
written to the API, ``outdated`` tells when a server is no longer what its author asks for, ``status`` and ``events``
turn what is known into what people read.
"""
