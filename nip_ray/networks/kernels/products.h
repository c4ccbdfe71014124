// Graph networks and pair attention on one machine's cores, forward and backward, in single precision.
//
// Decisions that matter here:
// - padding is never computed: nodes are gathered graph by graph, and only real ones take part;
// - work is done in blocks of graphs whose numbers stay in the nearest cache; a product there is small, so it has a kernel of its own;
// - a gradient is summed up in a fixed number of parts, each in a fixed order, so that results do not depend on the number of threads;
// - widths are multiples of 16, the lanes of the widest vectors, which the caller sees to;
// - plain C functions on raw memory: nothing here depends on a version of Python or torch.
#pragma once
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

namespace {

#if defined(__AVX512F__)
constexpr int LANES = 16, WIDE = 4;
#else
constexpr int LANES = 8, WIDE = 2;
#endif
constexpr int TALL = 6, PARTS = 8, BLOCK_ROWS = 64;
typedef float Vec __attribute__((vector_size(LANES * 4)));
typedef int32_t Int __attribute__((vector_size(LANES * 4)));

inline Vec load(const float* p) { Vec v; std::memcpy(&v, p, sizeof v); return v; }
inline void store(float* p, Vec v) { std::memcpy(p, &v, sizeof v); }
inline Vec all(float x) { return x - Vec{}; }
inline float sum(Vec v) { float s = 0; for (int i = 0; i < LANES; i++) s += v[i]; return s; }

// ---- elementary functions ------------------------------------------------------------------------------------------------------------

inline Vec exp_of(Vec x) {  // x <= 0; 2^n * e^r with |r| <= ln(2) / 2, e^r by its series to r^7
  x = x < all(-87.0f) ? all(-87.0f) : x;
  const Vec shift = all(12582912.0f), n = (x * 1.44269504f + shift) - shift;
  const Vec r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  Vec p = all(1.0f / 5040);
  p = p * r + 1.0f / 720; p = p * r + 1.0f / 120; p = p * r + 1.0f / 24; p = p * r + 1.0f / 6; p = p * r + 0.5f;
  p = (p * r + 1.0f) * r + 1.0f;
  const Int power = (__builtin_convertvector(n, Int) + 127) << 23;
  Vec scale; std::memcpy(&scale, &power, sizeof scale);
  return p * scale;
}

inline Vec tanh_of(Vec x) {  // x P(x^2) / Q(x^2), fitted on [0, 9] to 2e-8 of the value; in single precision right to 4e-7 of it
  x = x < all(-9.0f) ? all(-9.0f) : x > all(9.0f) ? all(9.0f) : x;
  const Vec z = x * x;
  Vec p = all(1.335483723607922e-08f), q = all(7.776635015943612e-07f);
  p = p * z + 2.06092245207401e-05f; p = p * z + 0.0034955975133925676f; p = p * z + 0.13381034135818481f; p = p * z + 1.0f;
  q = q * z + 0.0003285649581812322f; q = q * z + 0.02587701939046383f; q = q * z + 0.4671435058116913f; q = q * z + 1.0f;
  const Vec y = x * p / q;
  return y > all(1.0f) ? all(1.0f) : y < all(-1.0f) ? all(-1.0f) : y;
}

enum Activation { TANH, RELU, SIGMOID };

inline void activate(float* x, int64_t count, int kind) {
  for (int64_t i = 0; i < count; i += LANES) {
    Vec v = load(x + i);
    if (kind == TANH) v = tanh_of(v);
    else if (kind == RELU) v = v > 0 ? v : Vec{};
    else v = 0.5f + 0.5f * tanh_of(v * 0.5f);
    store(x + i, v);
  }
}

inline void through(float* gradient, const float* result, int64_t count, int kind) {  // gradient *= f', where f gave `result`
  for (int64_t i = 0; i < count; i += LANES) {
    const Vec y = load(result + i);
    Vec g = load(gradient + i);
    if (kind == TANH) g *= 1.0f - y * y;
    else if (kind == RELU) g = y > 0 ? g : Vec{};
    else g *= y * (1.0f - y);
    store(gradient + i, g);
  }
}

// ---- products ------------------------------------------------------------------------------------------------------------------------

// C (M, N) = [bias | C] + A B, with A's element (m, k) at a[m * row + k * column], N a multiple of LANES.
template <int M, int V>
inline void tile(int K, const float* a, int64_t row, int64_t column, const float* b, int64_t ldb, float* c, int64_t ldc, const float* bias,
                 bool add) {
  Vec total[M][V];
  for (int m = 0; m < M; m++)
    for (int v = 0; v < V; v++) total[m][v] = add ? load(c + m * ldc + v * LANES) : bias ? load(bias + v * LANES) : Vec{};
  for (int k = 0; k < K; k++) {
    Vec line[V];
    for (int v = 0; v < V; v++) line[v] = load(b + k * ldb + v * LANES);
    for (int m = 0; m < M; m++) {
      const Vec x = all(a[m * row + k * column]);
      for (int v = 0; v < V; v++) total[m][v] += x * line[v];
    }
  }
  for (int m = 0; m < M; m++)
    for (int v = 0; v < V; v++) store(c + m * ldc + v * LANES, total[m][v]);
}

template <int V>
inline void strip(int M, int K, const float* a, int64_t row, int64_t column, const float* b, int64_t ldb, float* c, int64_t ldc,
                  const float* bias, bool add) {
  for (; M >= TALL; M -= TALL, a += TALL * row, c += TALL * ldc) tile<TALL, V>(K, a, row, column, b, ldb, c, ldc, bias, add);
  switch (M) {
    case 5: return tile<5, V>(K, a, row, column, b, ldb, c, ldc, bias, add);
    case 4: return tile<4, V>(K, a, row, column, b, ldb, c, ldc, bias, add);
    case 3: return tile<3, V>(K, a, row, column, b, ldb, c, ldc, bias, add);
    case 2: return tile<2, V>(K, a, row, column, b, ldb, c, ldc, bias, add);
    case 1: return tile<1, V>(K, a, row, column, b, ldb, c, ldc, bias, add);
  }
}

void product(int M, int N, int K, const float* a, int64_t row, int64_t column, const float* b, int64_t ldb, float* c, int64_t ldc,
             const float* bias = nullptr, bool add = false) {
  for (; N >= WIDE * LANES; N -= WIDE * LANES, b += WIDE * LANES, c += WIDE * LANES, bias += bias ? WIDE * LANES : 0)
    strip<WIDE>(M, K, a, row, column, b, ldb, c, ldc, bias, add);
  for (; N >= LANES; N -= LANES, b += LANES, c += LANES, bias += bias ? LANES : 0)
    strip<1>(M, K, a, row, column, b, ldb, c, ldc, bias, add);
}

// y (rows, out) = x (rows, in) W' + b, with W' (in, out).
inline void linear(int rows, int in, int out, const float* x, const float* transposed, const float* bias, float* y) {
  product(rows, out, in, x, in, 1, transposed, out, y, out, bias);
}

// Gradients of W (out, in) and b (out) are added up; with `dx`, dx (rows, in) = dy W.
inline void linear_back(int rows, int in, int out, const float* x, const float* weight, const float* dy, float* d_weight, float* d_bias,
                        float* dx) {
  if (in % LANES == 0) {
    product(out, in, rows, dy, 1, out, x, in, d_weight, in, nullptr, true);
  } else {  // few inputs: the transposed gradient would be no faster
    for (int r = 0; r < rows; r++)
      for (int o = 0; o < out; o++)
        for (int i = 0; i < in; i++) d_weight[o * in + i] += dy[r * out + o] * x[r * in + i];
  }
  for (int r = 0; r < rows; r++)
    for (int o = 0; o < out; o += LANES) store(d_bias + o, load(d_bias + o) + load(dy + r * out + o));
  if (dx) product(rows, in, out, dy, out, 1, weight, in, dx, in);
}

void transpose(const float* x, int rows, int columns, float* y, int64_t ldy) {  // y (columns, rows)
  for (int r = 0; r < rows; r++)
    for (int c = 0; c < columns; c++) y[c * ldy + r] = x[r * columns + c];
}

// ---- work shared out -----------------------------------------------------------------------------------------------------------------

template <class Work>
void shared_out(int count, int threads, const Work& work) {  // work(0), ..., work(count - 1), each once
  std::atomic<int> next{0};
  auto go = [&] { for (int i; (i = next++) < count;) work(i); };
  threads = std::min(threads, count);
#ifdef _OPENMP  // torch's own threads, which may still be spinning after its last product
#pragma omp parallel num_threads(threads) if (threads > 1)
  go();
#else
  std::vector<std::thread> others;
  for (int t = 1; t < threads; t++) others.emplace_back(go);
  go();
  for (auto& other : others) other.join();
#endif
}

struct Range { int begin, end; };

// Consecutive things, so many together that they have at least BLOCK_ROWS rows. first (count + 1): where the rows of each begin.
std::vector<Range> blocks_of(const std::vector<int>& first) {
  std::vector<Range> made;
  const int count = int(first.size()) - 1;
  for (int begin = 0, i = 0; i < count; i++)
    if (first[i + 1] - first[begin] >= BLOCK_ROWS || i == count - 1) { made.push_back({begin, i + 1}); begin = i + 1; }
  return made;
}

Range part_of(int count, int part) { return {int(int64_t(count) * part / PARTS), int(int64_t(count) * (part + 1) / PARTS)}; }

// Room for `size` numbers, kept from use to use.
inline float* grown(std::vector<float>& x, int64_t size) { if (int64_t(x.size()) < size) x.resize(size); return x.data(); }

void add_up(const std::vector<std::vector<float>>& parts, float* result, int64_t size) {
  std::memset(result, 0, size * sizeof(float));
  for (const auto& part : parts)
    for (int64_t i = 0; i < size; i++) result[i] += part[i];
}

}  // namespace
