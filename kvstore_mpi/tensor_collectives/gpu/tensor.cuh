// Work on tensors: up to 8 vectors of one length, on this device or on others that it reaches.
//
// Both kernels go through memory once. A thread takes as many elements at once as 16 bytes hold of the widest type that
// is read or written, so that what the threads of a warp write lies one after the other: sums of float16 that went to
// the host's memory in float32, two packs a thread, had a fifth of the bus's speed (measured on an H200). Numbers are
// added in the type A, which is wider than T for 16 bits, in a fixed order: what has come first, then the vectors.
// Pointers may also lead to pinned memory of the host, so that a sum goes there without a stop on the device
// (MXNET-MPI, section 6.1).
//
// The caller says how many of those packs there are: none where a pointer is not aligned to 16 bytes.

constexpr int PACK_BYTES = 16;

template <typename T, int N>
struct alignas(N * sizeof(T)) Pack {
  T lane[N];
};

// Types of one word, as names of instances are made of them.
using i8 = signed char;
using u8 = unsigned char;
using i32 = int;
using i64 = long long;

__device__ __forceinline__ i8 widen(i8 value) { return value; }
__device__ __forceinline__ u8 widen(u8 value) { return value; }
__device__ __forceinline__ i32 widen(i32 value) { return value; }
__device__ __forceinline__ i64 widen(i64 value) { return value; }
__device__ __forceinline__ float widen(float value) { return value; }
__device__ __forceinline__ double widen(double value) { return value; }
__device__ __forceinline__ float widen(__half value) { return __half2float(value); }
__device__ __forceinline__ float widen(__nv_bfloat16 value) { return __bfloat162float(value); }

template <typename T>
__device__ __forceinline__ T narrow(float value);
template <>
__device__ __forceinline__ float narrow<float>(float value) { return value; }
template <>
__device__ __forceinline__ __half narrow<__half>(float value) { return __float2half_rn(value); }
template <>
__device__ __forceinline__ __nv_bfloat16 narrow<__nv_bfloat16>(float value) { return __float2bfloat16_rn(value); }
template <typename T>
__device__ __forceinline__ T narrow(__half value) { return value; }
template <typename T>
__device__ __forceinline__ T narrow(__nv_bfloat16 value) { return value; }
template <typename T>
__device__ __forceinline__ T narrow(double value) { return value; }
template <typename T>
__device__ __forceinline__ T narrow(i8 value) { return value; }
template <typename T>
__device__ __forceinline__ T narrow(u8 value) { return value; }
template <typename T>
__device__ __forceinline__ T narrow(i32 value) { return value; }
template <typename T>
__device__ __forceinline__ T narrow(i64 value) { return value; }

template <typename A>
__device__ __forceinline__ A add(A one, A other) { return A(one + other); }
template <typename A>
__device__ __forceinline__ bool above(A one, A other) { return one > other; }

#ifdef __CUDACC__
// CuPy compiles with -ftz=true, which takes float32 that is smaller than normal for 0, as the host does not. In
// instructions that are written out it changes nothing.
__device__ __forceinline__ float add(float one, float other) {
  float sum;
  asm("add.rn.f32 %0, %1, %2;" : "=f"(sum) : "f"(one), "f"(other));
  return sum;
}
__device__ __forceinline__ bool above(float one, float other) {
  int is_above;
  asm("{\n.reg .pred p;\nsetp.gt.f32 p, %1, %2;\nselp.s32 %0, 1, 0, p;\n}" : "=r"(is_above) : "f"(one), "f"(other));
  return is_above;
}
#endif

// NaN passes through all of them.
struct Sum {
  template <typename A>
  static __device__ __forceinline__ A of(A one, A other) { return add(one, other); }
};
struct Max {
  template <typename A>
  static __device__ __forceinline__ A of(A one, A other) { return above(one, other) || one != one ? one : other; }
};
struct Min {
  template <typename A>
  static __device__ __forceinline__ A of(A one, A other) { return above(other, one) || one != one ? one : other; }
};

// Elements that a thread takes at once: a pack of the widest of these types.
template <typename T, typename... Others>
constexpr int LANES = LANES<T> < LANES<Others...> ? LANES<T> : LANES<Others...>;
template <typename T>
constexpr int LANES<T> = PACK_BYTES / int(sizeof(T));

template <int N, typename T>
__device__ __forceinline__ Pack<T, N> load(const T* from, long long i) {
  return reinterpret_cast<const Pack<T, N>*>(from)[i];
}

template <typename T, int N>
__device__ __forceinline__ void store(T* to, long long i, const Pack<T, N>& pack) {
  reinterpret_cast<Pack<T, N>*>(to)[i] = pack;
}

// out[i] = (incoming[i] op) vectors[0][i] op ... op vectors[K - 1][i]; out, of the type O, which is A or T, may be
// incoming.
template <typename T, typename A, typename O, int K, bool INCOMING, typename Op>
__global__ void tensor_reduce(const T* v0, const T* v1, const T* v2, const T* v3, const T* v4, const T* v5,
                              const T* v6, const T* v7, const A* incoming, O* out, long long packs, long long size) {
  constexpr int N = INCOMING ? LANES<T, A, O> : LANES<T, O>;
  const T* const vectors[8] = {v0, v1, v2, v3, v4, v5, v6, v7};
  const long long first = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  const long long stride = (long long)gridDim.x * blockDim.x;
  for (long long i = first; i < packs; i += stride) {
    Pack<T, N> come[K];
#pragma unroll
    for (int k = 0; k < K; k++) come[k] = load<N>(vectors[k], i);
    Pack<A, N> before;
    if (INCOMING) before = load<N>(incoming, i);
    Pack<O, N> result;
#pragma unroll
    for (int q = 0; q < N; q++) {
      A sum = INCOMING ? Op::of(before.lane[q], A(widen(come[0].lane[q]))) : A(widen(come[0].lane[q]));
#pragma unroll
      for (int k = 1; k < K; k++) sum = Op::of(sum, A(widen(come[k].lane[q])));
      result.lane[q] = narrow<O>(sum);
    }
    store(out, i, result);
  }
  for (long long i = packs * N + first; i < size; i += stride) {
    A sum = INCOMING ? Op::of(incoming[i], A(widen(v0[i]))) : A(widen(v0[i]));
#pragma unroll
    for (int k = 1; k < K; k++) sum = Op::of(sum, A(widen(vectors[k][i])));
    out[i] = narrow<O>(sum);
  }
}

// vectors[k][i] = from[i] for all k: one read, wherever the source lies, of the type S, which is A or T.
template <typename T, typename S, int K>
__global__ void tensor_share(const S* from, T* v0, T* v1, T* v2, T* v3, T* v4, T* v5, T* v6, T* v7,
                             long long packs, long long size) {
  constexpr int N = LANES<T, S>;
  T* const vectors[8] = {v0, v1, v2, v3, v4, v5, v6, v7};
  const long long first = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  const long long stride = (long long)gridDim.x * blockDim.x;
  for (long long i = first; i < packs; i += stride) {
    const Pack<S, N> value = load<N>(from, i);
    Pack<T, N> pack;
#pragma unroll
    for (int q = 0; q < N; q++) pack.lane[q] = narrow<T>(value.lane[q]);
#pragma unroll
    for (int k = 0; k < K; k++) store(vectors[k], i, pack);
  }
  for (long long i = packs * N + first; i < size; i += stride) {
#pragma unroll
    for (int k = 0; k < K; k++) vectors[k][i] = narrow<T>(from[i]);
  }
}
