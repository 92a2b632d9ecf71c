"""Decisions of adoption and recovery, as pure functions of what was read.

``backend`` says whose turn it is, ``survival`` whether agents outlive a backend, ``next_step`` what comes next by what
is durable, ``gates`` what the answers of one server amount to. ``guards``, ``correlation``, ``reconstruction`` and
``outcomes`` decide about records and instances, ``deadline`` about those that nobody could decide about in time,
``liveness`` and ``repair`` about what is left. A pass reads, asks one of them, does the one thing, and asks again: so a
crash between any two things leaves a state from which the next pass goes on.
"""
