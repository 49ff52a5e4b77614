// Pairs of float16, rounded to the nearest and to even, by torch.
#pragma once

#include <c10/util/Half.h>

#include "device.h"

struct alignas(4) __half2 {
  c10::Half x, y;
};
inline __half2 __float22half2_rn(float2 pair) { return {c10::Half(pair.x), c10::Half(pair.y)}; }
inline float2 __half22float2(__half2 pair) { return {float(pair.x), float(pair.y)}; }
