"""What is measured: kernels that compute only the gradients that are asked for. torch and triton only."""
