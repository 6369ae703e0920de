"""One execution of a launch, many by chance, or all that there are."""
