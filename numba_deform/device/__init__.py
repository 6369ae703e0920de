"""What a kernel may call: intrinsics, one per PTX function, and the pipeline's bookkeeping."""
