"""From region probabilities to classes."""
