"""The owning side of one control server: its client, which proves before it trusts, and the renewal of the claim."""
