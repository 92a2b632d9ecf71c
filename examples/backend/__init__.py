"""A backend that may die at any moment: see README.md."""
