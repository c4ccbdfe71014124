"""Small games whose solutions are known: learning rules are measured against exact values, best responses and
equilibria."""
