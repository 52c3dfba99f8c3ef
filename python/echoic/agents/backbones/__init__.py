"""Language models that agents speak through. Each module imports its library when it is imported."""
