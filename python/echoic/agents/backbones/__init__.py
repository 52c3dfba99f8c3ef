"""Language models that agents speak through. A module imports its library when it is imported."""
