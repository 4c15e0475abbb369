"""Jobs of several systems whose workers die, come and leave, and what their workers noted."""
