"""What works behind the threads' backs: mbarriers, the copy engine, tensor maps, reductions, tensor cores."""
