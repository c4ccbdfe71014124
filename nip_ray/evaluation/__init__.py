"""Evaluation of verifiers: accuracy, completeness and soundness with exact intervals, by Weisfeiler-Leman score, greedy
and sampled, and the HTML report with its learning curves."""
