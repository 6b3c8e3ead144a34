// Enough of CUDA for g++ to compile the kernels for the CPU: threads one after the other, no shared memory.
#pragma once
#include <cstdint>
#include <cstring>

#define __global__
#define __device__
#define __forceinline__ inline

struct Place {
  unsigned x;
};
static thread_local Place blockIdx, threadIdx, blockDim, gridDim;

struct __half {
  _Float16 value;
};
inline float __half2float(__half from) { return float(from.value); }
inline __half __float2half_rn(float from) { return {_Float16(from)}; }

struct __nv_bfloat16 {
  uint16_t bits;
};
inline float __bfloat162float(__nv_bfloat16 from) {
  uint32_t bits = uint32_t(from.bits) << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}
inline __nv_bfloat16 __float2bfloat16_rn(float from) {
  uint32_t bits;
  memcpy(&bits, &from, sizeof bits);
  if ((bits & 0x7fffffff) > 0x7f800000) return {0x7fff};
  bits += 0x7fff + ((bits >> 16) & 1);
  return {uint16_t(bits >> 16)};
}

template <typename Kernel, typename... Arguments>
void launch(Kernel kernel, unsigned blocks, unsigned threads, Arguments... arguments) {
  gridDim = {blocks};
  blockDim = {threads};
  for (unsigned block = 0; block < blocks; block++) {
    for (unsigned thread = 0; thread < threads; thread++) {
      blockIdx = {block};
      threadIdx = {thread};
      kernel(arguments...);
    }
  }
}
