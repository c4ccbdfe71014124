// From nodes to representations: pooling, tokens, pair transformer and output; see `native.represent`.
#include "products.h"

namespace {

struct Pair {  // graphs: whether theirs are wanted; sides: 0, 1 or 2 graphs whose nodes are; invariant: to the order of the pair
  int count, nodes, inputs, latest, d, mlp, heads, layers, outputs, graphs, sides, invariant, threads;

  int row() const { return (inputs + 2 + latest + 15) / 16 * 16; }  // of a token: representation, marks of pooled ones, messages, zeros
};

struct Weights {  // of a layer, one after the other
  const float *in, *in_b, *out, *out_b, *up, *up_b, *down, *down_b, *norm1, *norm1_b, *norm2, *norm2_b;

  Weights(const Pair& p, const float* w) {
    const int64_t d = p.d, m = p.mlp;
    auto take = [&](int64_t size) { const float* at = w; w += size; return at; };
    in = take(3 * d * d); in_b = take(3 * d); out = take(d * d); out_b = take(d); up = take(m * d); up_b = take(m);
    down = take(d * m); down_b = take(d); norm1 = take(d); norm1_b = take(d); norm2 = take(d); norm2_b = take(d);
  }
  static int64_t size(const Pair& p) { return int64_t(4) * p.d * p.d + int64_t(2) * p.d * p.mlp + 9 * p.d + p.mlp; }
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
  std::vector<int64_t> token;  // >= 0: place in nodes (N, 2, V); < 0: -1 - place in graphs (N, 2)
  std::vector<int> ask, key;   // tokens
  std::vector<int64_t> target; // of a row that asks: place in the output, as `token` says
  std::vector<Query> queries;

  void fill(const Pair& p, Range range, const float* mask, const int64_t* side, bool pooled, int sides) {
    token.clear(), ask.clear(), key.clear(), target.clear(), queries.clear();
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
      if (pooled) {
        queries.push_back({int(ask.size()), 2, int(key.size()), start[2] - base});
        for (int t : {0, 1}) { ask.push_back(base + t); target.push_back(token[base + t]); }
        for (int t = base; t < start[2]; t++) key.push_back(t);
      }
      for (int g = 0; g < 2; g++) {
        if (sides == 0 || (sides == 1 && side[n] != g)) continue;
        queries.push_back({int(ask.size()), start[g + 1] - start[g], int(key.size()), 2 + start[2 - g] - start[1 - g]});
        for (int t = start[g]; t < start[g + 1]; t++) {
          ask.push_back(t);
          target.push_back(sides == 2 ? token[t] : token[t] - (int64_t(n) + g) * p.nodes);  // of n pairs before, and of graph 0
        }
        for (int t : {base, base + 1}) key.push_back(t);
        for (int t = start[1 - g]; t < start[2 - g]; t++) key.push_back(t);
      }
    }
  }
};

inline int padded(int n) { return (n + LANES - 1) / LANES * LANES; }

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

void layer(const Pair& p, const Weights& w, const Turned& t, const Block& b, Work& k) {  // from k.tokens to k.y, of those that ask
  const int tokens = int(b.token.size()), rows = int(b.ask.size()), d = p.d;
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

// From the gradient s.y of k.y to that of k.tokens, s.tokens; d_weights is added to.
void layer_back(const Pair& p, const Weights& w, const Block& b, Work& k, float* d_weights, Work& s) {
  const int tokens = int(b.token.size()), rows = int(b.ask.size()), d = p.d;
  const Weights dw(p, d_weights);
  auto set = [](const float* x) { return const_cast<float*>(x); };
  float* dy = s.y.data();
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
}

struct Body {  // weights as the products need them, and where each part begins in the caller's array and in that of gradients
  const Pair& p;
  std::vector<float> token, turned_token, turned_out;  // (d, row), (row, d), (d, outputs)
  const float *token_b, *out, *out_b;
  std::vector<Weights> layers;
  std::vector<Turned> turned_layers;

  Body(const Pair& p, const float* w) : p(p), token(int64_t(p.d) * p.row()), turned_token(token.size()), turned_out(int64_t(p.d) * p.outputs) {
    const int given = p.inputs + 2 + p.latest;
    for (int o = 0; o < p.d; o++) std::memcpy(token.data() + int64_t(o) * p.row(), w + int64_t(o) * given, sizeof(float) * given);
    transpose(token.data(), p.d, p.row(), turned_token.data(), p.d);
    token_b = w + int64_t(p.d) * given;
    w = token_b + p.d;
    for (int l = 0; l < p.layers; l++, w += Weights::size(p)) { layers.emplace_back(p, w); turned_layers.push_back(turned(p, layers[l])); }
    out = w;
    out_b = w + int64_t(p.outputs) * p.d;
    transpose(out, p.outputs, p.d, turned_out.data(), p.outputs);
  }
  static int64_t after_token(const Pair& p) { return p.d + p.layers * Weights::size(p) + int64_t(p.outputs) * (p.d + 1); }
};

struct Passed {  // a block on its way through: rows before tokens, a layer's numbers each, the output
  std::vector<float> rows, difference, out;
  std::vector<Work> layers;
};

void body(const Body& m, const Block& all, const Block& wanted, const float* h, const float* latest, Passed& k) {
  const Pair& p = m.p;
  const int count = int(all.token.size()), width = p.row(), in = p.inputs;
  grown(k.rows, int64_t(count) * width), grown(k.difference, int64_t(count) * in);
  std::memset(k.rows.data(), 0, sizeof(float) * count * width);
  float* pair = nullptr;  // rows of the two pooled tokens
  for (int t = 0; t < count; t++) {
    float* row = k.rows.data() + int64_t(t) * width;
    const int64_t at = all.token[t];
    if (at < 0) {
      const int g = int((-1 - at) % 2);
      if (g == 0) pair = row;
      row[in + g] = 1;
      continue;
    }
    std::memcpy(row, h + at * in, sizeof(float) * in);
    std::memcpy(row + in + 2, latest + at * p.latest, sizeof(float) * p.latest);
    float* sum = pair + (at / p.nodes % 2) * width;
    for (int c = 0; c < in; c++) sum[c] += row[c];
  }
  for (int t = 0; p.invariant && t < count; t++) {
    if (all.token[t] >= 0 || (-1 - all.token[t]) % 2) continue;
    float *first = k.rows.data() + int64_t(t) * width, *second = first + width, *difference = k.difference.data() + int64_t(t) * in;
    for (int c = 0; c < in; c++) {
      const float a = first[c], b = second[c];
      difference[c] = a - b;
      first[c] = (a + b) / 2;
      second[c] = std::fabs(a - b) / 2;
    }
  }
  if (int(k.layers.size()) < p.layers) k.layers.resize(p.layers);
  linear(count, width, p.d, k.rows.data(), m.turned_token.data(), m.token_b, grown(k.layers[0].tokens, int64_t(count) * p.d));
  for (int l = 0; l < p.layers; l++) {
    const bool last = l == p.layers - 1;
    layer(p, m.layers[l], m.turned_layers[l], last ? wanted : all, k.layers[l]);
    if (!last) std::memcpy(grown(k.layers[l + 1].tokens, int64_t(count) * p.d), k.layers[l].y.data(), sizeof(float) * count * p.d);
  }
  const int rows = int(wanted.ask.size());
  linear(rows, p.d, p.outputs, k.layers[p.layers - 1].y.data(), m.turned_out.data(), m.out_b, grown(k.out, int64_t(rows) * p.outputs));
}

// d_out: of the wanted rows. d_weights: of the token's (d, row), then as `Body::after_token`.
void body_back(const Body& m, const Block& all, const Block& wanted, const float* d_out, Passed& k, Passed& s, float* d_weights, float* d_h) {
  const Pair& p = m.p;
  const int count = int(all.token.size()), rows = int(wanted.ask.size()), width = p.row(), in = p.inputs;
  if (int(s.layers.size()) < p.layers) s.layers.resize(p.layers);
  float *d_token_b = d_weights + int64_t(p.d) * width, *d_layers = d_token_b + p.d, *d_last = d_layers + p.layers * Weights::size(p);
  Work& top = s.layers[p.layers - 1];
  linear_back(rows, p.d, p.outputs, k.layers[p.layers - 1].y.data(), m.out, d_out, d_last, d_last + int64_t(p.outputs) * p.d,
              grown(top.y, int64_t(rows) * p.d));
  for (int l = p.layers - 1; l >= 0; l--) {
    const bool last = l == p.layers - 1;
    if (!last) std::memcpy(grown(s.layers[l].y, int64_t(count) * p.d), s.layers[l + 1].tokens.data(), sizeof(float) * count * p.d);
    layer_back(p, m.layers[l], last ? wanted : all, k.layers[l], d_layers + l * Weights::size(p), s.layers[l]);
  }
  float* d_rows = grown(s.rows, int64_t(count) * width);
  linear_back(count, width, p.d, k.rows.data(), m.token.data(), s.layers[0].tokens.data(), d_weights, d_token_b, d_rows);
  const float* pair = nullptr;
  for (int t = 0; t < count; t++) {
    float* row = d_rows + int64_t(t) * width;
    const int64_t at = all.token[t];
    if (at < 0) {
      if ((-1 - at) % 2) continue;
      pair = row;
      const float* difference = k.difference.data() + int64_t(t) * in;
      for (int c = 0; p.invariant && c < in; c++) {
        const float mean = row[c] / 2, apart = row[width + c] / 2 * float((difference[c] > 0) - (difference[c] < 0));
        row[c] = mean + apart;
        row[width + c] = mean - apart;
      }
      continue;
    }
    const float* pooled = pair + (at / p.nodes % 2) * width;
    for (int c = 0; c < in; c++) d_h[at * in + c] = row[c] + pooled[c];
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

// h (N, 2, V, inputs), latest (N, 2, V, latest), mask (N, 2, V): real nodes. side (N): the graph wanted, where sides is 1. Outputs
// (N, 2, outputs) and (N, sides, V, outputs), zeroed. weights: token (d, inputs + 2 + latest) and bias, the layers', output and bias.
void nip_pair(const Pair* p, const float* h, const float* latest, const float* mask, const int64_t* side, const float* weights,
              float* graphs_out, float* nodes_out) {
  const Body m(*p, weights);
  const auto blocks = blocks_of_pairs(*p, mask);
  shared_out(int(blocks.size()), p->threads, [&](int i) {
    thread_local Passed passed;
    thread_local Block all, wanted;
    all.fill(*p, blocks[i], mask, side, p->layers > 1, p->layers > 1 ? 2 : 0);
    wanted.fill(*p, blocks[i], mask, side, p->graphs, p->sides);
    body(m, all, wanted, h, latest, passed);
    for (size_t r = 0; r < wanted.ask.size(); r++) {
      const int64_t at = wanted.target[r], size = p->outputs;
      std::memcpy(at < 0 ? graphs_out + (-1 - at) * size : nodes_out + at * size, passed.out.data() + r * size, sizeof(float) * size);
    }
  });
}

// The gradients by h (zeroed before) and weights (in their order). What the forward pass found is found again, block by block.
void nip_pair_back(const Pair* p, const float* h, const float* latest, const float* mask, const int64_t* side, const float* weights,
                   const float* graphs_gradient, const float* nodes_gradient, float* d_h, float* d_weights) {
  const Body m(*p, weights);
  const auto blocks = blocks_of_pairs(*p, mask);
  const int64_t padded_token = int64_t(p->d) * p->row(), size = padded_token + Body::after_token(*p);
  std::vector<std::vector<float>> parts(PARTS);
  shared_out(PARTS, p->threads, [&](int part) {
    thread_local Passed passed, spare;
    thread_local Block all, wanted;
    parts[part].assign(size, 0.0f);
    const Range mine = part_of(int(blocks.size()), part);
    for (int i = mine.begin; i < mine.end; i++) {
      all.fill(*p, blocks[i], mask, side, p->layers > 1, p->layers > 1 ? 2 : 0);
      wanted.fill(*p, blocks[i], mask, side, p->graphs, p->sides);
      body(m, all, wanted, h, latest, passed);
      const int64_t rows = int64_t(wanted.ask.size()), width = p->outputs;
      float* d_out = grown(spare.out, rows * width);
      for (int64_t r = 0; r < rows; r++) {
        const int64_t at = wanted.target[r];
        std::memcpy(d_out + r * width, at < 0 ? graphs_gradient + (-1 - at) * width : nodes_gradient + at * width, sizeof(float) * width);
      }
      body_back(m, all, wanted, d_out, passed, spare, parts[part].data(), d_h);
    }
  });
  std::vector<float> total(size);
  add_up(parts, total.data(), size);
  const int given = p->inputs + 2 + p->latest;
  for (int o = 0; o < p->d; o++) std::memcpy(d_weights + int64_t(o) * given, total.data() + int64_t(o) * p->row(), sizeof(float) * given);
  std::memcpy(d_weights + int64_t(p->d) * given, total.data() + padded_token, sizeof(float) * Body::after_token(*p));
}

}  // extern "C"
