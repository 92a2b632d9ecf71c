"""The hosted instances: which there are, their turns, events, permission requests and streams.

For whoever serves the routes::

    instances = Instances(config, port=lambda: 8443)
    hosted = instances.admit(request)          # synchronous: refuses (CreateRefused) or registers
    await instances.launch(hosted)             # starts the agent when auto_start

    ws = stream_socket()                       # the settings that a stream needs; then permit, and
    await ws.prepare(request)                  # permit again and attach without an await in between
    stream = hosted.attach(ws, acknowledges=wants_acknowledgement(request.query))
    await stream.run()
"""

from tenure.control.instances.config import CreateRefused, HostingConfig, Status, StopFailed, Timing
from tenure.control.instances.hosted import Hosted
from tenure.control.instances.registry import Instances
from tenure.control.instances.stream import CloseCode, Stream, stream_socket, wants_acknowledgement

__all__ = [
    "CloseCode",
    "CreateRefused",
    "Hosted",
    "HostingConfig",
    "Instances",
    "Status",
    "StopFailed",
    "Stream",
    "Timing",
    "stream_socket",
    "wants_acknowledgement",
]
