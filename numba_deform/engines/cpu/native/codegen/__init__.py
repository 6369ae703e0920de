"""What a front end writes machine code with."""
