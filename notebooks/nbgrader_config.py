"""Settings of nbgrader for these lessons."""

c = get_config()  # noqa: F821  nbgrader's own
c.CourseDirectory.course_id = "numba_deform"
c.ExecutePreprocessor.timeout = 600  # seconds of a cell: checks run kernels on the CPU engine
c.GenerateAssignment.preprocessors = [
    f"nbgrader.preprocessors.{name}"
    for name in (
        "IncludeHeaderFooter", "LockCells", "ClearOutput", "CheckCellMetadata", "ComputeChecksums", "SaveCells",
        "ClearHiddenTests", "ComputeChecksums", "CheckCellMetadata",
    )
]  # all but ClearSolutions: an exercise has holes already, and the first line of its function stays
