"""What makes a plan exact, and how that is checked: certificates, tabular models, counterexamples, drift."""
