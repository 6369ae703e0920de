"""LLVM's types, under the names that everything in ``native`` uses."""

from llvmlite import ir

I1, I8, I16, I32, I64 = map(ir.IntType, (1, 8, 16, 32, 64))
HALF, F32, F64, POINTER = ir.HalfType(), ir.FloatType(), ir.DoubleType(), ir.PointerType()
