"""The operator: checks, arrays, the bound call, prepared calls, the choice of a kernel, the reference."""
