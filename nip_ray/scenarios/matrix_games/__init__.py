"""Small games with known solutions, to compare learning with exact values, best responses and equilibria."""
