// Pairs of bfloat16, rounded to the nearest and to even, by torch.
#pragma once

#include <c10/util/BFloat16.h>

#include "device.h"

struct alignas(4) __nv_bfloat162 {
  c10::BFloat16 x, y;
};
inline __nv_bfloat162 __float22bfloat162_rn(float2 pair) { return {c10::BFloat16(pair.x), c10::BFloat16(pair.y)}; }
