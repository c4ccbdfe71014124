// Graph networks and pair attention on one machine's cores, forward and backward, in single precision.
//
// Decisions that matter here:
// - padding is never computed: nodes are gathered graph by graph, and only real ones take part;
// - work is done in blocks of graphs whose numbers stay in the nearest cache; a product there is small, so it has a kernel of its own;
// - a gradient is summed up in a fixed number of parts, each in a fixed order, so that results do not depend on the number of threads;
// - widths are multiples of 16, the lanes of the widest vectors, which the caller sees to;
// - plain C functions on raw memory: nothing here depends on a version of Python or torch.
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

inline Vec tanh_of(Vec x) {  // near 0 the odd series, which keeps relative precision; elsewhere (1 - e) / (1 + e) with e = exp(-2 |x|)
  const Vec size = x < 0 ? -x : x, e = exp_of(size * -2.0f), z = x * x;
  const Vec far = (1.0f - e) / (1.0f + e);
  Vec p = all(-1382.0f / 155925);
  p = p * z + 62.0f / 2835; p = p * z - 17.0f / 315; p = p * z + 2.0f / 15; p = p * z - 1.0f / 3;
  return size < all(0.25f) ? x + x * z * p : (x < 0 ? -far : far);
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

void add_up(const std::vector<std::vector<float>>& parts, float* result, int64_t size) {
  std::memset(result, 0, size * sizeof(float));
  for (const auto& part : parts)
    for (int64_t i = 0; i < size; i++) result[i] += part[i];
}

// ---- graph networks ------------------------------------------------------------------------------------------------------------------

struct Graphs {  // real nodes of all graphs, one after the other
  std::vector<int> first, node, edge_first, edge;  // of a graph: its first row; of a row: its place in (graph, V); edges: rows, row by row
  std::vector<Range> blocks;

  Graphs(int streams, int count, int nodes, const float* adjacency, const float* mask) {
    std::vector<int> row(nodes);
    first.push_back(0);
    edge_first.push_back(0);
    for (int s = 0; s < streams; s++)
      for (int g = 0; g < count; g++) {
        const float* real = mask + int64_t(g) * nodes;
        int end = first.back();
        for (int v = 0; v < nodes; v++)
          if (real[v] != 0) { row[v] = end++; node.push_back((s * count + g) * nodes + v); }
        for (int v = 0; v < nodes; v++) {
          if (real[v] == 0) continue;
          const float* line = adjacency + (int64_t(g) * nodes + v) * nodes;
          for (int w = 0; w < nodes; w++)
            if (line[w] != 0 && real[w] != 0) edge.push_back(row[w]);
          edge_first.push_back(int(edge.size()));
        }
        first.push_back(end);
      }
    blocks = blocks_of(first);
  }
};

struct Gin {
  int streams, count, nodes, in, d, mlp, layers, networks, kind, threads;

  int64_t size() const { return int64_t(d) * (in + 1) + layers * (int64_t(2) * d * mlp + mlp + d); }  // of a network's parameters
  int64_t rows() const { return int64_t(streams) * count * nodes; }
  int64_t kept() const { return rows() * layers * (d + mlp); }  // of a network
};

// Sum over a row's neighbours and itself: s = (A + I) a, for the rows of a block that begins at row `base`.
void gather(const Graphs& graphs, Range rows, int base, int d, const float* a, float* s) {
  for (int r = rows.begin; r < rows.end; r++)
    for (int c = 0; c < d; c += LANES) {
      Vec total = load(a + int64_t(r - base) * d + c);
      for (int e = graphs.edge_first[r]; e < graphs.edge_first[r + 1]; e++) total += load(a + int64_t(graphs.edge[e] - base) * d + c);
      store(s + int64_t(r - base) * d + c, total);
    }
}

void scatter(const Graphs& graphs, Range rows, int base, int d, const float* ds, float* da) {  // da = (A + I)' ds
  std::memcpy(da, ds, sizeof(float) * d * (rows.end - rows.begin));
  for (int r = rows.begin; r < rows.end; r++)
    for (int e = graphs.edge_first[r]; e < graphs.edge_first[r + 1]; e++)
      for (int c = 0; c < d; c += LANES) {
        float* place = da + int64_t(graphs.edge[e] - base) * d + c;
        store(place, load(place) + load(ds + int64_t(r - base) * d + c));
      }
}

void copy_rows(const Graphs& graphs, Range rows, int width, const float* from, float* to) {
  for (int r = rows.begin; r < rows.end; r++)
    std::memcpy(to + int64_t(r - rows.begin) * width, from + int64_t(graphs.node[r]) * width, sizeof(float) * width);
}

// ---- pair attention ------------------------------------------------------------------------------------------------------------------

struct Pair {
  int count, nodes, d, mlp, heads, pooled, sides, threads;  // pooled: whether wanted; sides: 0, 1 or 2 graphs whose nodes are wanted
};

struct Weights {  // of a layer, as one array: see `Pair` in the caller
  const float *in, *in_b, *out, *out_b, *up, *up_b, *down, *down_b, *norm1, *norm1_b, *norm2, *norm2_b;

  Weights(const Pair& p, const float* w) {
    const int64_t d = p.d, m = p.mlp;
    auto take = [&](int64_t size) { const float* at = w; w += size; return at; };
    in = take(3 * d * d); in_b = take(3 * d); out = take(d * d); out_b = take(d); up = take(m * d); up_b = take(m);
    down = take(d * m); down_b = take(d); norm1 = take(d); norm1_b = take(d); norm2 = take(d); norm2_b = take(d);
  }
  static int64_t size(const Pair& p) { return int64_t(4) * p.d * p.d + int64_t(2) * p.d * p.mlp + 4 * p.d + p.mlp + p.d + 4 * p.d; }
};

struct Turned { std::vector<float> ask, keep, out, up, down; };  // transposed weights

Turned turned(const Pair& p, const Weights& w) {
  const int64_t d = p.d, m = p.mlp;
  Turned t{std::vector<float>(d * d), std::vector<float>(2 * d * d), std::vector<float>(d * d), std::vector<float>(m * d),
           std::vector<float>(d * m)};
  transpose(w.in, d, d, t.ask.data(), d);
  transpose(w.in + d * d, 2 * d, d, t.keep.data(), 2 * d);
  transpose(w.out, d, d, t.out.data(), d);
  transpose(w.up, m, d, t.up.data(), m);
  transpose(w.down, d, m, t.down.data(), d);
  return t;
}

struct Query { int first, count, key_first, key_count; };  // rows that ask, and keys they attend to, both in the block's lists

struct Block {  // some pairs of graphs: real tokens, those that ask, and the keys of each group that asks
  std::vector<int64_t> token;  // >= 0: place in nodes (N, 2, V); < 0: -1 - place in pooled (N, 2)
  std::vector<int> ask, key;   // tokens
  std::vector<int64_t> target; // of a row that asks: place in the output, as `token` says
  std::vector<Query> queries;

  Block(const Pair& p, Range range, const float* mask, const int64_t* side) {
    for (int n = range.begin; n < range.end; n++) {
      const int base = int(token.size());
      int start[3] = {base + 2, 0, 0};
      token.push_back(-1 - int64_t(2) * n);
      token.push_back(-2 - int64_t(2) * n);
      for (int g = 0; g < 2; g++) {
        for (int v = 0; v < p.nodes; v++)
          if (mask[(int64_t(2) * n + g) * p.nodes + v] != 0) token.push_back((int64_t(2) * n + g) * p.nodes + v);
        start[g + 1] = int(token.size());
      }
      if (p.pooled) {
        queries.push_back({int(ask.size()), 2, int(key.size()), start[2] - base});
        for (int t : {0, 1}) { ask.push_back(base + t); target.push_back(token[base + t]); }
        for (int t = base; t < start[2]; t++) key.push_back(t);
      }
      for (int g = 0; g < 2; g++) {
        if (p.sides == 0 || (p.sides == 1 && side[n] != g)) continue;
        queries.push_back({int(ask.size()), start[g + 1] - start[g], int(key.size()), 2 + start[2 - g] - start[1 - g]});
        for (int t = start[g]; t < start[g + 1]; t++) {
          const int64_t v = token[t] % p.nodes;
          ask.push_back(t);
          target.push_back(p.sides == 2 ? token[t] : int64_t(n) * p.nodes + v);
        }
        for (int t : {base, base + 1}) key.push_back(t);
        for (int t = start[1 - g]; t < start[2 - g]; t++) key.push_back(t);
      }
    }
  }
};

inline int padded(int n) { return (n + LANES - 1) / LANES * LANES; }

float* grown(std::vector<float>& x, int64_t size) { if (int64_t(x.size()) < size) x.resize(size); return x.data(); }

void normalise(int rows, int d, const float* x, const float* gain, const float* shift, float* hat, float* scale, float* y) {
  for (int r = 0; r < rows; r++) {
    Vec total{}, squares{};
    for (int c = 0; c < d; c += LANES) total += load(x + r * d + c);
    const float mean = sum(total) / d;
    for (int c = 0; c < d; c += LANES) { const Vec e = load(x + r * d + c) - mean; squares += e * e; }
    scale[r] = 1 / std::sqrt(sum(squares) / d + 1e-5f);
    for (int c = 0; c < d; c += LANES) {
      const Vec h = (load(x + r * d + c) - mean) * scale[r];
      store(hat + r * d + c, h);
      store(y + r * d + c, h * load(gain + c) + load(shift + c));
    }
  }
}

void normalise_back(int rows, int d, const float* hat, const float* scale, const float* gain, float* dy, float* d_gain, float* d_shift) {
  for (int r = 0; r < rows; r++) {  // dy becomes dx
    Vec total{}, along{};
    for (int c = 0; c < d; c += LANES) {
      const Vec g = load(dy + r * d + c), h = load(hat + r * d + c), scaled = g * load(gain + c);
      store(d_gain + c, load(d_gain + c) + g * h);
      store(d_shift + c, load(d_shift + c) + g);
      store(dy + r * d + c, scaled);
      total += scaled;
      along += scaled * h;
    }
    const float mean = sum(total) / d, part = sum(along) / d;
    for (int c = 0; c < d; c += LANES)
      store(dy + r * d + c, (load(dy + r * d + c) - mean - load(hat + r * d + c) * part) * scale[r]);
  }
}

void gather_tokens(const Pair& p, const Block& b, const float* pooled, const float* nodes, float* to) {
  for (size_t t = 0; t < b.token.size(); t++) {
    const int64_t place = b.token[t];
    std::memcpy(to + t * p.d, place < 0 ? pooled + (-1 - place) * p.d : nodes + place * p.d, sizeof(float) * p.d);
  }
}

// Attention of one group of rows that ask. kv (keys, 2 d), query (rows, d) -> mixed (rows, d); weights (heads, keys, lanes) are left in
// `weight`, queries by features (d, lanes), scaled, in `turned`.
void attend(const Pair& p, int rows, int keys, const float* kv, const float* query, float* turned, float* weight, float* turned_mixed,
            float* mixed) {
  const int lanes = padded(rows), width = p.d / p.heads;
  const float scale = 1 / std::sqrt(float(width));
  std::memset(turned, 0, sizeof(float) * p.d * lanes);
  for (int r = 0; r < rows; r++)
    for (int c = 0; c < p.d; c++) turned[c * lanes + r] = query[r * p.d + c] * scale;
  for (int h = 0; h < p.heads; h++) {
    float* w = weight + int64_t(h) * keys * lanes;
    product(keys, lanes, width, kv + h * width, 2 * p.d, 1, turned + h * width * lanes, lanes, w, lanes);
    for (int l = 0; l < lanes; l += LANES) {
      Vec most = load(w + l), total{};
      for (int k = 1; k < keys; k++) { const Vec v = load(w + k * lanes + l); most = v > most ? v : most; }
      for (int k = 0; k < keys; k++) { const Vec e = exp_of(load(w + k * lanes + l) - most); total += e; store(w + k * lanes + l, e); }
      total = 1.0f / total;
      for (int k = 0; k < keys; k++) store(w + k * lanes + l, load(w + k * lanes + l) * total);
    }
    product(width, lanes, keys, kv + p.d + h * width, 1, 2 * p.d, w, lanes, turned_mixed + h * width * lanes, lanes);
  }
  for (int r = 0; r < rows; r++)
    for (int c = 0; c < p.d; c++) mixed[r * p.d + c] = turned_mixed[c * lanes + r];
}

// The gradients of `attend`: d_kv (keys, 2 d) and d_query (rows, d) are set. `spare` has room for all that is turned.
void attend_back(const Pair& p, int rows, int keys, const float* kv, const float* turned, const float* weight, const float* d_mixed,
                 float* d_kv, float* d_query, std::vector<float>& spare) {
  const int lanes = padded(rows), key_lanes = padded(keys), width = p.d / p.heads;
  const float scale = 1 / std::sqrt(float(width));
  float* at = grown(spare, int64_t(2) * p.d * lanes + int64_t(keys) * lanes + int64_t(2) * rows * key_lanes + int64_t(2) * p.d * key_lanes);
  float *d_turned = at, *d_turned_query = d_turned + p.d * lanes, *d_score = d_turned_query + p.d * lanes,
        *by_row = d_score + int64_t(keys) * lanes, *d_by_row = by_row + int64_t(rows) * key_lanes,
        *d_key = d_by_row + int64_t(rows) * key_lanes, *d_value = d_key + p.d * key_lanes;
  std::memset(at, 0, sizeof(float) * (d_key - at));
  transpose(d_mixed, rows, p.d, d_turned, lanes);
  for (int h = 0; h < p.heads; h++) {
    const float* w = weight + int64_t(h) * keys * lanes;
    product(keys, lanes, width, kv + p.d + h * width, 2 * p.d, 1, d_turned + h * width * lanes, lanes, d_score, lanes);
    for (int l = 0; l < lanes; l += LANES) {
      Vec along{};
      for (int k = 0; k < keys; k++) along += load(w + k * lanes + l) * load(d_score + k * lanes + l);
      for (int k = 0; k < keys; k++) store(d_score + k * lanes + l, load(w + k * lanes + l) * (load(d_score + k * lanes + l) - along));
    }
    for (int k = 0; k < keys; k++)
      for (int r = 0; r < rows; r++) {
        by_row[r * key_lanes + k] = w[k * lanes + r];
        d_by_row[r * key_lanes + k] = d_score[k * lanes + r];
      }
    product(width, key_lanes, rows, d_turned + h * width * lanes, lanes, 1, by_row, key_lanes, d_value + h * width * key_lanes, key_lanes);
    product(width, key_lanes, rows, turned + h * width * lanes, lanes, 1, d_by_row, key_lanes, d_key + h * width * key_lanes, key_lanes);
    product(width, lanes, keys, kv + h * width, 1, 2 * p.d, d_score, lanes, d_turned_query + h * width * lanes, lanes);
  }
  for (int k = 0; k < keys; k++)
    for (int c = 0; c < p.d; c++) {
      d_kv[k * 2 * p.d + c] = d_key[c * key_lanes + k];
      d_kv[k * 2 * p.d + p.d + c] = d_value[c * key_lanes + k];
    }
  for (int r = 0; r < rows; r++)
    for (int c = 0; c < p.d; c++) d_query[r * p.d + c] = d_turned_query[c * lanes + r] * scale;
}

struct Work {  // a block's numbers, kept for its gradient
  std::vector<float> tokens, kv, asking, query, keys, turned, weight, turned_mixed, mixed, first, hat1, scale1, hidden, second, hat2, scale2, y;
  std::vector<int64_t> turned_at, weight_at;
};

void layer(const Pair& p, const Weights& w, const Turned& t, const Block& b, const float* pooled, const float* nodes, Work& k) {
  const int tokens = int(b.token.size()), rows = int(b.ask.size()), d = p.d;
  gather_tokens(p, b, pooled, nodes, grown(k.tokens, int64_t(tokens) * d));
  linear(tokens, d, 2 * d, k.tokens.data(), t.keep.data(), w.in_b + d, grown(k.kv, int64_t(tokens) * 2 * d));
  grown(k.asking, int64_t(rows) * d);
  for (int r = 0; r < rows; r++) std::memcpy(k.asking.data() + int64_t(r) * d, k.tokens.data() + int64_t(b.ask[r]) * d, sizeof(float) * d);
  linear(rows, d, d, k.asking.data(), t.ask.data(), w.in_b, grown(k.query, int64_t(rows) * d));
  grown(k.keys, int64_t(b.key.size()) * 2 * d);
  for (size_t i = 0; i < b.key.size(); i++)
    std::memcpy(k.keys.data() + i * 2 * d, k.kv.data() + int64_t(b.key[i]) * 2 * d, sizeof(float) * 2 * d);
  int64_t turned_size = 0, weight_size = 0, most = 0;
  k.turned_at.clear(), k.weight_at.clear();
  for (const Query& q : b.queries) {
    k.turned_at.push_back(turned_size), k.weight_at.push_back(weight_size);
    turned_size += int64_t(d) * padded(q.count), weight_size += int64_t(p.heads) * q.key_count * padded(q.count);
    most = std::max<int64_t>(most, int64_t(d) * padded(q.count));
  }
  grown(k.turned, turned_size), grown(k.weight, weight_size), grown(k.turned_mixed, most), grown(k.mixed, int64_t(rows) * d);
  for (size_t i = 0; i < b.queries.size(); i++) {
    const Query& q = b.queries[i];
    attend(p, q.count, q.key_count, k.keys.data() + int64_t(q.key_first) * 2 * d, k.query.data() + int64_t(q.first) * d,
           k.turned.data() + k.turned_at[i], k.weight.data() + k.weight_at[i], k.turned_mixed.data(), k.mixed.data() + int64_t(q.first) * d);
  }
  const int64_t size = int64_t(rows) * d;
  auto plus = [&](float* x, const float* more) { for (int64_t i = 0; i < size; i += LANES) store(x + i, load(x + i) + load(more + i)); };
  linear(rows, d, d, k.mixed.data(), t.out.data(), w.out_b, grown(k.second, size));
  plus(k.second.data(), k.asking.data());
  normalise(rows, d, k.second.data(), w.norm1, w.norm1_b, grown(k.hat1, size), grown(k.scale1, rows), grown(k.first, size));
  linear(rows, d, p.mlp, k.first.data(), t.up.data(), w.up_b, grown(k.hidden, int64_t(rows) * p.mlp));
  activate(k.hidden.data(), int64_t(rows) * p.mlp, RELU);
  linear(rows, p.mlp, d, k.hidden.data(), t.down.data(), w.down_b, k.second.data());
  plus(k.second.data(), k.first.data());
  normalise(rows, d, k.second.data(), w.norm2, w.norm2_b, grown(k.hat2, size), grown(k.scale2, rows), grown(k.y, size));
}

struct PairGradients { const float *pooled, *nodes; float *d_pooled, *d_nodes; };

void layer_back(const Pair& p, const Weights& w, const Block& b, const PairGradients& io, Work& k, float* d_weights, Work& s) {
  const int tokens = int(b.token.size()), rows = int(b.ask.size()), d = p.d;
  const Weights dw(p, d_weights);
  auto set = [](const float* x) { return const_cast<float*>(x); };
  float* dy = grown(s.y, int64_t(rows) * d);
  for (int r = 0; r < rows; r++) {
    const int64_t at = b.target[r];
    std::memcpy(dy + int64_t(r) * d, at < 0 ? io.pooled + (-1 - at) * d : io.nodes + at * d, sizeof(float) * d);
  }
  normalise_back(rows, d, k.hat2.data(), k.scale2.data(), w.norm2, dy, set(dw.norm2), set(dw.norm2_b));
  float* d_hidden = grown(s.hidden, int64_t(rows) * p.mlp);
  linear_back(rows, p.mlp, d, k.hidden.data(), w.down, dy, set(dw.down), set(dw.down_b), d_hidden);
  through(d_hidden, k.hidden.data(), int64_t(rows) * p.mlp, RELU);
  float* d_first = grown(s.first, int64_t(rows) * d);
  linear_back(rows, d, p.mlp, k.first.data(), w.up, d_hidden, set(dw.up), set(dw.up_b), d_first);
  for (int64_t i = 0; i < int64_t(rows) * d; i += LANES) store(d_first + i, load(d_first + i) + load(dy + i));
  normalise_back(rows, d, k.hat1.data(), k.scale1.data(), w.norm1, d_first, set(dw.norm1), set(dw.norm1_b));
  float* d_mixed = grown(s.mixed, int64_t(rows) * d);
  linear_back(rows, d, d, k.mixed.data(), w.out, d_first, set(dw.out), set(dw.out_b), d_mixed);
  float *d_query = grown(s.query, int64_t(rows) * d), *d_kv = grown(s.kv, int64_t(tokens) * 2 * d);
  std::memset(d_kv, 0, sizeof(float) * tokens * 2 * d);
  for (size_t i = 0; i < b.queries.size(); i++) {
    const Query& q = b.queries[i];
    float* d_keys = grown(s.keys, int64_t(q.key_count) * 2 * d);
    attend_back(p, q.count, q.key_count, k.keys.data() + int64_t(q.key_first) * 2 * d, k.turned.data() + k.turned_at[i],
                k.weight.data() + k.weight_at[i], d_mixed + int64_t(q.first) * d, d_keys, d_query + int64_t(q.first) * d, s.weight);
    for (int j = 0; j < q.key_count; j++) {
      float* to = d_kv + int64_t(b.key[q.key_first + j]) * 2 * d;
      for (int c = 0; c < 2 * d; c += LANES) store(to + c, load(to + c) + load(d_keys + int64_t(j) * 2 * d + c));
    }
  }
  float *d_asking = grown(s.asking, int64_t(rows) * d), *d_tokens = grown(s.tokens, int64_t(tokens) * d);
  linear_back(rows, d, d, k.asking.data(), w.in, d_query, set(dw.in), set(dw.in_b), d_asking);
  linear_back(tokens, d, 2 * d, k.tokens.data(), w.in + int64_t(d) * d, d_kv, set(dw.in) + int64_t(d) * d, set(dw.in_b) + d, d_tokens);
  for (int r = 0; r < rows; r++) {
    float* to = d_tokens + int64_t(b.ask[r]) * d;
    for (int c = 0; c < d; c += LANES)
      store(to + c, load(to + c) + load(d_asking + int64_t(r) * d + c) + load(d_first + int64_t(r) * d + c));
  }
  for (int t = 0; t < tokens; t++) {
    const int64_t at = b.token[t];
    std::memcpy(at < 0 ? io.d_pooled + (-1 - at) * d : io.d_nodes + at * d, d_tokens + int64_t(t) * d, sizeof(float) * d);
  }
}

std::vector<Range> blocks_of_pairs(const Pair& p, const float* mask) {
  std::vector<int> first{0};
  for (int n = 0; n < p.count; n++) {
    int real = 2;
    for (int i = 0; i < 2 * p.nodes; i++) real += mask[int64_t(n) * 2 * p.nodes + i] != 0;
    first.push_back(first.back() + real);
  }
  return blocks_of(first);
}

}  // namespace

extern "C" {

// outputs: K of (S, M, V, d), zeroed. kept: K of (layers, rows, d + mlp), or none where no gradient will be asked for. parameters: of each network W0 b0, then W1 b1 W2 b2 a layer.
void nip_gin(const Gin* g, const float* x, const float* adjacency, const float* mask, const float* const* parameters, float* const* outputs,
             float* kept) {
  const Graphs graphs(g->streams, g->count, g->nodes, adjacency, mask);
  const int d = g->d, m = g->mlp, per_network = 2 + 4 * g->layers;
  std::vector<std::vector<float>> turned(g->networks * (1 + 2 * g->layers));
  for (int n = 0; n < g->networks; n++)
    for (int i = 0; i < 1 + 2 * g->layers; i++) {
      const int in = i == 0 ? g->in : i % 2 ? d : m, out = i % 2 ? m : d;
      auto& to = turned[n * (1 + 2 * g->layers) + i];
      to.resize(int64_t(in) * out);
      transpose(parameters[n * per_network + 2 * i], out, in, to.data(), out);
    }
  const int blocks = int(graphs.blocks.size());
  shared_out(blocks * g->networks, g->threads, [&](int job) {
    const int n = job % g->networks;
    const Range block = graphs.blocks[job / g->networks], rows{graphs.first[block.begin], graphs.first[block.end]};
    const int count = rows.end - rows.begin;
    const float* const* at = parameters + n * per_network;
    thread_local std::vector<float> features, h, s, passing;
    copy_rows(graphs, rows, g->in, x, grown(features, int64_t(count) * g->in));
    linear(count, g->in, d, features.data(), turned[n * (1 + 2 * g->layers)].data(), at[1], grown(h, int64_t(count) * d));
    grown(s, int64_t(count) * d);
    for (int l = 0; l < g->layers; l++) {
      // a block's (rows, d), then (rows, mlp)
      float* a = kept ? kept + n * g->kept() + l * g->rows() * (d + m) + int64_t(rows.begin) * (d + m) : grown(passing, int64_t(count) * (d + m));
      float* t = a + int64_t(count) * d;
      std::memcpy(a, h.data(), sizeof(float) * count * d);
      activate(a, int64_t(count) * d, g->kind);
      gather(graphs, rows, rows.begin, d, a, s.data());
      linear(count, d, m, s.data(), turned[n * (1 + 2 * g->layers) + 1 + 2 * l].data(), at[3 + 4 * l], t);
      activate(t, int64_t(count) * m, g->kind);
      linear(count, m, d, t, turned[n * (1 + 2 * g->layers) + 2 + 2 * l].data(), at[5 + 4 * l], h.data());
    }
    for (int r = rows.begin; r < rows.end; r++)
      std::memcpy(outputs[n] + int64_t(graphs.node[r]) * d, h.data() + int64_t(r - rows.begin) * d, sizeof(float) * d);
  });
}

// gradients: K of (S, M, V, d). result: K of Gin::size(), in the order of the parameters.
void nip_gin_back(const Gin* g, const float* x, const float* adjacency, const float* mask, const float* const* parameters,
                  const float* const* gradients, const float* kept, float* result) {
  const Graphs graphs(g->streams, g->count, g->nodes, adjacency, mask);
  const int d = g->d, m = g->mlp, per_network = 2 + 4 * g->layers, blocks = int(graphs.blocks.size());
  std::vector<std::vector<std::vector<float>>> parts(g->networks, std::vector<std::vector<float>>(PARTS));
  shared_out(PARTS * g->networks, g->threads, [&](int job) {
    const int n = job % g->networks;
    const Range mine = part_of(blocks, job / g->networks);
    auto& total = parts[n][job / g->networks];
    total.assign(g->size(), 0.0f);
    const float* const* at = parameters + n * per_network;
    thread_local std::vector<float> features, s, dh, dt, ds;
    for (int i = mine.begin; i < mine.end; i++) {
      const Range block = graphs.blocks[i], rows{graphs.first[block.begin], graphs.first[block.end]};
      const int count = rows.end - rows.begin;
      copy_rows(graphs, rows, d, gradients[n], grown(dh, int64_t(count) * d));
      grown(s, int64_t(count) * d), grown(ds, int64_t(count) * d), grown(dt, int64_t(count) * m);
      float* to = total.data() + g->size();
      for (int l = g->layers - 1; l >= 0; l--) {
        const float* a = kept + n * g->kept() + l * g->rows() * (d + m) + int64_t(rows.begin) * (d + m);
        const float* t = a + int64_t(count) * d;
        gather(graphs, rows, rows.begin, d, a, s.data());
        to -= d; float* db2 = to; to -= d * m; float* dw2 = to; to -= m; float* db1 = to; to -= m * d; float* dw1 = to;
        linear_back(count, m, d, t, at[4 + 4 * l], dh.data(), dw2, db2, dt.data());
        through(dt.data(), t, int64_t(count) * m, g->kind);
        linear_back(count, d, m, s.data(), at[2 + 4 * l], dt.data(), dw1, db1, ds.data());
        scatter(graphs, rows, rows.begin, d, ds.data(), dh.data());
        through(dh.data(), a, int64_t(count) * d, g->kind);
      }
      copy_rows(graphs, rows, g->in, x, grown(features, int64_t(count) * g->in));
      linear_back(count, g->in, d, features.data(), nullptr, dh.data(), total.data(), total.data() + int64_t(d) * g->in, nullptr);
    }
  });
  shared_out(g->networks, g->threads, [&](int n) { add_up(parts[n], result + n * g->size(), g->size()); });
}

// mask (N, 2, V): real nodes. side (N): the graph wanted, where sides is 1. Outputs (N, 2, d) and (N, sides, V, d), zeroed.
void nip_pair(const Pair* p, const float* pooled, const float* nodes, const float* mask, const int64_t* side, const float* weights,
              float* pooled_out, float* nodes_out) {
  const Weights w(*p, weights);
  const Turned t = turned(*p, w);
  const auto blocks = blocks_of_pairs(*p, mask);
  shared_out(int(blocks.size()), p->threads, [&](int i) {
    thread_local Work work;
    const Block block(*p, blocks[i], mask, side);
    layer(*p, w, t, block, pooled, nodes, work);
    for (size_t r = 0; r < block.ask.size(); r++) {
      const int64_t at = block.target[r];
      std::memcpy(at < 0 ? pooled_out + (-1 - at) * p->d : nodes_out + at * p->d, work.y.data() + r * p->d, sizeof(float) * p->d);
    }
  });
}

// The gradients by inputs (zeroed before) and weights (in their order). What the forward pass found is found again, block by block.
void nip_pair_back(const Pair* p, const float* pooled, const float* nodes, const float* mask, const int64_t* side, const float* weights,
                   const float* pooled_gradient, const float* nodes_gradient, float* d_pooled, float* d_nodes, float* d_weights) {
  const Weights w(*p, weights);
  const Turned t = turned(*p, w);
  const auto blocks = blocks_of_pairs(*p, mask);
  std::vector<std::vector<float>> parts(PARTS);
  shared_out(PARTS, p->threads, [&](int part) {
    thread_local Work work, spare;
    parts[part].assign(Weights::size(*p), 0.0f);
    const Range mine = part_of(int(blocks.size()), part);
    for (int i = mine.begin; i < mine.end; i++) {
      const Block block(*p, blocks[i], mask, side);
      layer(*p, w, t, block, pooled, nodes, work);
      layer_back(*p, w, block, {pooled_gradient, nodes_gradient, d_pooled, d_nodes}, work, parts[part].data(), spare);
    }
  });
  add_up(parts, d_weights, Weights::size(*p));
}

}  // extern "C"
