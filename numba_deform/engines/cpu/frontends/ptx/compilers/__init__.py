"""Kernels of other compilers by way of their PTX: CUDA C++ (nvcc, NVRTC), and Triton with Gluon."""
