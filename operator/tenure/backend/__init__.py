"""Role 3: what a backend embeds to drive the agents of a control server."""
