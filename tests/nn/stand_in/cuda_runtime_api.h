// What the library needs of CUDA's own header.
#pragma once

using cudaStream_t = void *;
using cudaError_t = int;
constexpr cudaError_t cudaSuccess = 0, cudaErrorLaunchFailure = 719;
cudaError_t cudaGetLastError();
const char *cudaGetErrorString(cudaError_t);
