#pragma once
// wgmma m64nNk16, bf16 operands and fp32 accumulators, for the tile widths used here.
//
// Accumulator layout (PTX ISA, wgmma .m64nN): warp w of the warpgroup owns rows 16w .. 16w+15. For
// each j < N/8 a lane holds
//   acc[4j .. 4j+1]    row lane/4, columns 8j + 2(lane%4) + {0,1}
//   acc[4j+2 .. 4j+3]  the same columns of row lane/4 + 8
//
// "Major" says which dimension is contiguous in the 128-byte rows of the tile: K (the contracted
// one) or MN.

#include "nsa_model/kernels/common/hopper.cuh"

namespace nsa::kernels {

enum class Major : int { kK = 0, kMN = 1 };

#if NSA_HOPPER_CODE

// Descriptor of a swizzled tile with rows of 128 bytes. Groups of eight rows are 1024 bytes apart,
// along M or N for a K-major operand and along K for an MN-major one. An MN-major operand wider
// than 64 consists of panels that are `panel_bytes` apart; others do not use that stride. The upper
// word is the same for all. Arithmetic on the lower word alone stays in the uniform registers from
// which wgmma reads its descriptors.
#define NSA_DESCRIPTOR_HIGH "0x40000040"
inline constexpr uint32_t kNoPanels = 16;
__device__ __forceinline__ uint32_t tile_descriptor(uint32_t address,
                                                    uint32_t panel_bytes = kNoPanels) {
  return ((address & 0x3FFFF) >> 4) | (panel_bytes >> 4 << 16);
}
// Increment of a descriptor for the next 16 elements of K.
template <Major kMajor> __device__ constexpr uint32_t step_k16() {
  return kMajor == Major::kK ? 2 : 128; // 32 bytes along the row, or 16 rows of 128 bytes
}
// Returns the same value in every lane, in a form that tells the compiler so.
__device__ __forceinline__ int uniform(int value) {
  return __shfl_sync(~0u, value, 0);
}

__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kPending> __device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// Prevents the compiler from moving uses of accumulators across the wait that makes them valid.
template <int kCount> __device__ __forceinline__ void pin(float (&values)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i)
    asm volatile("" : "+f"(values[i])::"memory");
}
template <int kCount> __device__ __forceinline__ void pin(uint32_t (&values)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i)
    asm volatile("" : "+r"(values[i])::"memory");
}

// ptxas moves a wait for products before arithmetic that does not need them, and then nothing
// overlaps with the products. A branch on a result of all that arithmetic keeps it in place. The
// branch is never taken.
__device__ __forceinline__ void keep_before_wait(float never_negative) {
  if (never_negative < 0.0f) __trap();
}
// The first kCount registers of an array.
template <int kCount, typename T, int kAll>
__device__ __forceinline__ T (&part(T (&values)[kAll]))[kCount] {
  static_assert(kCount <= kAll);
  return reinterpret_cast<T(&)[kCount]>(values);
}

// An asm statement numbers its operands: accumulators first, then the others. NAMES are the
// accumulators' numbers, and D(constraint, first) lists them as operands.
#define NSA_NAMES_4 "%0, %1, %2, %3"
#define NSA_NAMES_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define NSA_NAMES_24                                                                               \
  NSA_NAMES_16 ", "                                                                                \
               "%16, %17, %18, %19, %20, %21, %22, %23"
#define NSA_NAMES_32                                                                               \
  NSA_NAMES_24 ", "                                                                                \
               "%24, %25, %26, %27, %28, %29, %30, %31"
#define NSA_NAMES_36                                                                               \
  NSA_NAMES_32 ", "                                                                                \
               "%32, %33, %34, %35"
#define NSA_NAMES_48                                                                               \
  NSA_NAMES_36 ", "                                                                                \
               "%36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define NSA_NAMES_64                                                                               \
  NSA_NAMES_48 ", "                                                                                \
               "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define NSA_NAMES_128                                                                              \
  NSA_NAMES_64                                                                                     \
  ", "                                                                                             \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, "     \
  "%82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, "     \
  "%100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, "     \
  "%115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define NSA_D4(c, i) c(d[i]), c(d[i + 1]), c(d[i + 2]), c(d[i + 3])
#define NSA_D8(c, i) NSA_D4(c, i), NSA_D4(c, i + 4)
#define NSA_D16(c, i) NSA_D8(c, i), NSA_D8(c, i + 8)
#define NSA_D24(c, i) NSA_D16(c, i), NSA_D8(c, i + 16)
#define NSA_D32(c, i) NSA_D16(c, i), NSA_D16(c, i + 16)
#define NSA_D36(c, i) NSA_D32(c, i), NSA_D4(c, i + 32)
#define NSA_D48(c, i) NSA_D32(c, i), NSA_D16(c, i + 32)
#define NSA_D64(c, i) NSA_D32(c, i), NSA_D32(c, i + 32)
#define NSA_D128(c, i) NSA_D64(c, i), NSA_D64(c, i + 64)
#define NSA_WGMMA(n) "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 "

// d = A B (`shared_first`) and d += A B (`shared`), both operands in shared memory. x0 to x3 are
// the four operands after the accumulators.
#define NSA_SHARED_PRODUCT(name, add, c, n, NAMES, D, x0, x1, x2, x3)                              \
  template <Major kA, Major kB>                                                                    \
  static __device__ __forceinline__ void name(float(&d)[n / 2], uint32_t a, uint32_t b) {          \
    asm volatile("{\n.reg .pred p;\n.reg .b64 da, db;\nsetp.ne.b32 p, " add ", 0;\n"               \
                 "mov.b64 da, {" x0 ", " NSA_DESCRIPTOR_HIGH "};\n"                                \
                 "mov.b64 db, {" x1 ", " NSA_DESCRIPTOR_HIGH                                       \
                 "};\n" NSA_WGMMA(n) "{" NAMES "}, da, db, p, 1, 1, " x2 ", " x3 ";\n}\n"          \
                 : D(c, 0)                                                                         \
                 : "r"(a), "r"(b), "n"(static_cast<int>(kA)), "n"(static_cast<int>(kB)));          \
  }
#define NSA_SHARED_PRODUCTS(n, NAMES, D, x0, x1, x2, x3)                                           \
  NSA_SHARED_PRODUCT(shared_first, "0", "=f", n, NAMES, D, x0, x1, x2, x3)                         \
  NSA_SHARED_PRODUCT(shared, "1", "+f", n, NAMES, D, x0, x1, x2, x3)
// The same with A from registers: a[0..3] = (row, k), (row + 8, k), (row, k + 8), (row + 8, k + 8).
#define NSA_REGISTERS_PRODUCT(name, add, c, n, NAMES, D, x0, x1, x2, x3, x4, x5)                   \
  template <Major kB>                                                                              \
  static __device__ __forceinline__ void name(float(&d)[n / 2], const uint32_t* a, uint32_t b) {   \
    asm volatile("{\n.reg .pred p;\n.reg .b64 db;\nsetp.ne.b32 p, " add ", 0;\n"                   \
                 "mov.b64 db, {" x4 ", " NSA_DESCRIPTOR_HIGH                                       \
                 "};\n" NSA_WGMMA(n) "{" NAMES "}, {" x0 ", " x1 ", " x2 ", " x3                   \
                                     "}, db, p, 1, 1, " x5 ";\n}\n"                                \
                 : D(c, 0)                                                                         \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "n"(static_cast<int>(kB))); \
  }
#define NSA_REGISTERS_PRODUCTS(n, NAMES, D, x0, x1, x2, x3, x4, x5)                                \
  NSA_REGISTERS_PRODUCT(registers_first, "0", "=f", n, NAMES, D, x0, x1, x2, x3, x4, x5)           \
  NSA_REGISTERS_PRODUCT(registers, "1", "+f", n, NAMES, D, x0, x1, x2, x3, x4, x5)

template <int kN> struct Wgmma;
template <> struct Wgmma<8> {
  NSA_REGISTERS_PRODUCTS(8, NSA_NAMES_4, NSA_D4, "%4", "%5", "%6", "%7", "%8", "%9")
};
template <> struct Wgmma<32> {
  NSA_SHARED_PRODUCTS(32, NSA_NAMES_16, NSA_D16, "%16", "%17", "%18", "%19")
};
template <> struct Wgmma<48> {
  NSA_SHARED_PRODUCTS(48, NSA_NAMES_24, NSA_D24, "%24", "%25", "%26", "%27")
  NSA_REGISTERS_PRODUCTS(48, NSA_NAMES_24, NSA_D24, "%24", "%25", "%26", "%27", "%28", "%29")
};
template <> struct Wgmma<64> {
  NSA_SHARED_PRODUCTS(64, NSA_NAMES_32, NSA_D32, "%32", "%33", "%34", "%35")
  NSA_REGISTERS_PRODUCTS(64, NSA_NAMES_32, NSA_D32, "%32", "%33", "%34", "%35", "%36", "%37")
};
template <> struct Wgmma<72> {
  NSA_REGISTERS_PRODUCTS(72, NSA_NAMES_36, NSA_D36, "%36", "%37", "%38", "%39", "%40", "%41")
};
template <> struct Wgmma<96> {
  NSA_SHARED_PRODUCTS(96, NSA_NAMES_48, NSA_D48, "%48", "%49", "%50", "%51")
  NSA_REGISTERS_PRODUCTS(96, NSA_NAMES_48, NSA_D48, "%48", "%49", "%50", "%51", "%52", "%53")
};
template <> struct Wgmma<128> {
  NSA_SHARED_PRODUCTS(128, NSA_NAMES_64, NSA_D64, "%64", "%65", "%66", "%67")
  NSA_REGISTERS_PRODUCTS(128, NSA_NAMES_64, NSA_D64, "%64", "%65", "%66", "%67", "%68", "%69")
};
template <> struct Wgmma<256> {
  // d = A B, or d += A B if `accumulate`, with both operands in shared memory, A K-major.
  template <Major kB>
  static __device__ __forceinline__ void shared(float (&d)[128], uint32_t a, uint32_t b,
                                                bool accumulate) {
    asm volatile("{\n.reg .pred p;\n.reg .b64 da, db;\nsetp.ne.b32 p, %130, 0;\n"
                 "mov.b64 da, {%128, " NSA_DESCRIPTOR_HIGH "};\n"
                 "mov.b64 db, {%129, " NSA_DESCRIPTOR_HIGH
                 "};\n" NSA_WGMMA(256) "{" NSA_NAMES_128 "}, da, db, p, 1, 1, 0, %131;\n}\n"
                 : NSA_D128("+f", 0)
                 : "r"(a), "r"(b), "r"(static_cast<int>(accumulate)), "n"(static_cast<int>(kB)));
  }
};

// d = A B (or d += A B) over a contraction of 16 kSteps, both operands in shared memory, given by
// their descriptors. Overwriting does not read d, so products can be issued while older values of
// the same registers are still in use.
template <int kN, int kSteps, Major kA, Major kB, bool kAccumulate>
__device__ __forceinline__ void multiply_described(float (&d)[kN / 2], uint32_t a_descriptor,
                                                   uint32_t b_descriptor) {
#pragma unroll
  for (int k = 0; k < kSteps; ++k) {
    const uint32_t a_step = a_descriptor + k * step_k16<kA>();
    const uint32_t b_step = b_descriptor + k * step_k16<kB>();
    if (!kAccumulate && k == 0) {
      Wgmma<kN>::template shared_first<kA, kB>(d, a_step, b_step);
    } else {
      Wgmma<kN>::template shared<kA, kB>(d, a_step, b_step);
    }
  }
}
// The same with their addresses.
template <int kN, int kSteps, Major kA, Major kB, bool kAccumulate>
__device__ __forceinline__ void multiply_shared(float (&d)[kN / 2], uint32_t a, uint32_t b) {
  multiply_described<kN, kSteps, kA, kB, kAccumulate>(d, tile_descriptor(a), tile_descriptor(b));
}
// The same with A in registers, 4 kSteps words.
template <int kN, int kSteps, Major kB, bool kAccumulate>
__device__ __forceinline__ void multiply_registers(float (&d)[kN / 2],
                                                   const uint32_t (&a)[4 * kSteps], uint32_t b,
                                                   uint32_t panel_bytes = kNoPanels) {
  const uint32_t b_descriptor = tile_descriptor(b, panel_bytes);
#pragma unroll
  for (int k = 0; k < kSteps; ++k) {
    const uint32_t b_step = b_descriptor + k * step_k16<kB>();
    if (!kAccumulate && k == 0) {
      Wgmma<kN>::template registers_first<kB>(d, a + 4 * k, b_step);
    } else {
      Wgmma<kN>::template registers<kB>(d, a + 4 * k, b_step);
    }
  }
}
// d[0..31] = A B (or d += A B) with A in registers and B an MN-major tile 64 wide. Every lane also
// gets the sums of its two rows of A: d[32] for the first and d[34] for the second. They are a
// product with eight more columns of ones, which are `ones` bytes after B: 16 rows of 128 bytes.
template <int kSteps, bool kAccumulate = false>
__device__ __forceinline__ void multiply_and_sum(float (&d)[36], const uint32_t (&a)[4 * kSteps],
                                                 uint32_t b, uint32_t ones) {
  // The distance is in bits 16 and up of the descriptor. It decreases as the rows of B advance.
  constexpr uint32_t kStep = step_k16<Major::kMN>();
  const uint32_t descriptor = ((b & 0x3FFFF) >> 4) + (ones << 12);
#pragma unroll
  for (int k = 0; k < kSteps; ++k) {
    const uint32_t b_step = descriptor + k * (kStep - (kStep << 16));
    if (!kAccumulate && k == 0) {
      Wgmma<72>::registers_first<Major::kMN>(d, a, b_step);
    } else {
      Wgmma<72>::registers<Major::kMN>(d, a + 4 * k, b_step);
    }
  }
}
// d = A B^T over kDim dimensions, both operands in shared memory. Their panels of 64 dimensions are
// `a_panel` and `b_panel` bytes apart.
template <int kN, int kDim>
__device__ __forceinline__ void multiply_rows(float (&d)[kN / 2], uint32_t a, uint32_t a_panel,
                                              uint32_t b, uint32_t b_panel) {
  constexpr int kSteps = kPanelDims / 16;
  multiply_shared<kN, kSteps, Major::kK, Major::kK, false>(d, a, b);
#pragma unroll
  for (int panel = 1; panel < kPanels<kDim>; ++panel)
    multiply_shared<kN, kSteps, Major::kK, Major::kK, true>(d, a + panel * a_panel,
                                                            b + panel * b_panel);
}
// The same for B in two panels, 128 wide. The sums are d[64] and d[66], and `ones` is an address.
template <int kSteps>
__device__ __forceinline__ void multiply_wide_and_sum(float (&d)[68],
                                                      const uint32_t (&a)[4 * kSteps], uint32_t b,
                                                      uint32_t panel_bytes, uint32_t ones) {
  multiply_registers<128, kSteps, Major::kMN, false>(part<64>(d), a, b, panel_bytes);
  float(&sums)[4] = reinterpret_cast<float(&)[4]>(d[64]);
  const uint32_t descriptor = tile_descriptor(ones);
#pragma unroll
  for (int k = 0; k < kSteps; ++k) { // the same rows of ones each time
    if (k == 0) {
      Wgmma<8>::registers_first<Major::kMN>(sums, a, descriptor);
    } else {
      Wgmma<8>::registers<Major::kMN>(sums, a + 4 * k, descriptor);
    }
  }
}
// d += A B with A in registers and B's rows, of kDim dimensions, along the contraction.
template <int kDim, int kSteps>
__device__ __forceinline__ void add_rows(float (&d)[kDim / 2], const uint32_t (&a)[4 * kSteps],
                                         uint32_t b, uint32_t panel_bytes) {
  multiply_registers<kDim, kSteps, Major::kMN, true>(d, a, b,
                                                     kPanels<kDim> == 1 ? kNoPanels : panel_bytes);
}
// Rounds accumulators (64 x kN) to bf16 in the layout of an A operand from registers.
template <int kN>
__device__ __forceinline__ void to_operand(const float (&d)[kN / 2], uint32_t (&a)[kN / 4]) {
#pragma unroll
  for (int i = 0; i < kN / 4; ++i)
    a[i] = pack_bf16(d[2 * i], d[2 * i + 1]);
}

#endif // NSA_HOPPER_CODE

} // namespace nsa::kernels
