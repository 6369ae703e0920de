"""What the operator is run on: shapes and patterns that models have, data directories, a picture."""
