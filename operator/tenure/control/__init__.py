"""Role 2: the control server, a process that hosts agents and outlives its backend."""
