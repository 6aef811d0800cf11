"""Training, export and evaluation of the bundled model; not a part of the package."""
