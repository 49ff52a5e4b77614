#pragma once

namespace c10::cuda {
inline void *getCurrentCUDAStream() { return nullptr; }
} // namespace c10::cuda
