"""A CMake project in C++ that runs a model."""
