"""Real federations: a server and sites as processes that restart, with keys, and nothing that phones home."""
