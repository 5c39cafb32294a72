// The language: objects, function pointers, recursion, the heap, printf, lambdas, integer and floating-point functions.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <string>

#include "program.h"

// Functions as values.

__constant__ int weights[5] = {1, -2, 3};  // the rest is 0
__constant__ double scale;
__device__ int calls = 100;

__device__ int plus(int a, int b) { return a + b; }
__device__ int times(int a, int b) { return a * b; }
__device__ int weighted(int a, int b) { return a + weights[(b & 0xff) % 5]; }
using Operation = int (*)(int, int);
__device__ Operation operations[3] = {plus, times, weighted};

__global__ void apply(const int* values, int* out, double* scaled) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  out[i] = operations[i % 3](values[i], i);  // lanes of a warp call different functions
  scaled[i] = scale * values[i];
  atomicAdd(&calls, 1);
}
bool function_pointers_and_constants() {
  const int n = 256;
  std::vector<int> values(n), wanted(n);
  std::vector<double> wanted_scaled(n);
  const int host_weights[5] = {1, -2, 3, 7, 0};
  const int seven = 7;
  const double third = 1.0 / 3;
  CHECK_CUDA(cudaMemcpyToSymbol(weights, &seven, sizeof seven, 3 * sizeof(int)));
  CHECK_CUDA(cudaMemcpyToSymbol(scale, &third, sizeof third));
  for (int i = 0; i < n; ++i) {
    values[i] = i * 37 % 101 - 50;
    wanted[i] = i % 3 == 0   ? values[i] + i
                : i % 3 == 1 ? values[i] * i
                             : values[i] + host_weights[(i & 0xff) % 5];
    wanted_scaled[i] = third * values[i];
  }
  DeviceVector<int> in(values), out(n);
  DeviceVector<double> scaled(n);
  apply<<<4, 64>>>(in.data(), out.data(), scaled.data());
  int counted = 0;
  CHECK_CUDA(cudaMemcpyFromSymbol(&counted, calls, sizeof counted));
  return out.host() == wanted && scaled.host() == wanted_scaled && counted == 100 + n;
}

// Objects of several classes, on the device's heap.

struct Shape {
  __device__ virtual ~Shape() {}
  __device__ virtual int area() const = 0;
  __device__ virtual int corners() const { return 4; }
};
struct Square : Shape {
  int side;
  __device__ explicit Square(int s) : side(s) {}
  __device__ int area() const override { return side * side; }
};
struct Triangle : Shape {
  int base, height;
  __device__ Triangle(int b, int h) : base(b), height(h) {}
  __device__ int area() const override { return base * height / 2; }
  __device__ int corners() const override { return 3; }
};

__device__ int ackermann(int m, int n) {
  if (m == 0) return n + 1;
  return n == 0 ? ackermann(m - 1, 1) : ackermann(m - 1, ackermann(m, n - 1));
}

struct Node {
  int key;
  Node *left, *right;
};
__device__ Node* insert(Node* tree, int key) {
  if (tree == nullptr) {
    Node* const leaf = static_cast<Node*>(malloc(sizeof(Node)));
    *leaf = {key, nullptr, nullptr};
    return leaf;
  }
  Node*& child = key < tree->key ? tree->left : tree->right;
  child = insert(child, key);
  return tree;
}
__device__ int* store_in_order(Node* tree, int* out) {
  if (tree == nullptr) return out;
  out = store_in_order(tree->left, out);
  *out++ = tree->key;
  out = store_in_order(tree->right, out);
  free(tree);
  return out;
}

__global__ void use_objects(int* areas, int* corners, int* depth, int* sorted) {
  const int i = threadIdx.x;
  Shape* const shape = i % 2 ? static_cast<Shape*>(new Square(i)) : new Triangle(i, i + 1);
  areas[i] = shape->area();
  corners[i] = shape->corners();
  delete shape;
  depth[i] = ackermann(2, i % 5);
  Node* tree = nullptr;
  for (int k = 0; k < 10; ++k) tree = insert(tree, (k * 7 + i) % 10);
  store_in_order(tree, sorted + 10 * i);
}
bool objects_and_recursion() {
  const int n = 64;
  DeviceVector<int> areas(n), corners(n), depth(n), sorted(10 * n);
  CHECK_CUDA(cudaDeviceSetLimit(cudaLimitStackSize, 8 << 10));
  use_objects<<<1, n>>>(areas.data(), corners.data(), depth.data(), sorted.data());
  const std::vector<int> a = areas.host(), c = corners.host(), d = depth.host(), s = sorted.host();
  bool right = true;
  for (int i = 0; i < n; ++i) {
    right = right && a[i] == (i % 2 ? i * i : i * (i + 1) / 2) && c[i] == (i % 2 ? 4 : 3) &&
            d[i] == 2 * (i % 5) + 3;
    for (int k = 0; k < 10; ++k) right = right && s[10 * i + k] == k;
  }
  return right;
}

// printf.

/// What a function prints to standard output.
std::string printed_by(const std::function<void()>& f) {
  std::fflush(stdout);
  FILE* const file = std::tmpfile();
  const int out = dup(STDOUT_FILENO);
  dup2(fileno(file), STDOUT_FILENO);
  f();
  std::fflush(stdout);
  dup2(out, STDOUT_FILENO);
  close(out);
  std::string text(static_cast<std::size_t>(std::ftell(file)), ' ');
  std::rewind(file);
  text.resize(std::fread(text.data(), 1, text.size(), file));
  std::fclose(file);
  return text;
}

__global__ void print_values(int* arguments) {
  const char c = 'x';
  const short s = -3;
  printf("%d|%5u|%-6x|%08.3f|%e|%c|%hd|%s|%%\n", -7, 42u, 0xbeef, 3.14159f, 12345.678, c, s, "text");
  printf("%lld %llu %lx %+d %g\n", -1'234'567'890'123ll, ~0ull, 0xfeedfacecafeul, 5, 0.1);
  printf("%*d|%.*f|%10s|%-10s|\n", 6, 12, 2, 2.71828, "right", "left");
  *arguments = printf("plain\n");
}
__global__ void print_lines() {
  if (threadIdx.x % 3 == 0) printf("thread %d of block %d\n", threadIdx.x, blockIdx.x);
}
bool printing() {
  DeviceVector<int> result(1);
  const std::string text = printed_by([&] {
    print_values<<<1, 1>>>(result.data());
    CHECK_CUDA(cudaDeviceSynchronize());
  });
  char wanted[1000];
  int size = std::snprintf(wanted, sizeof wanted, "%d|%5u|%-6x|%08.3f|%e|%c|%hd|%s|%%\n", -7, 42u, 0xbeef,
                           3.14159f, 12345.678, 'x', -3, "text");
  size += std::snprintf(wanted + size, sizeof wanted - size, "%lld %llu %lx %+d %g\n", -1'234'567'890'123ll,
                        ~0ull, 0xfeedfacecafeul, 5, 0.1);
  size += std::snprintf(wanted + size, sizeof wanted - size, "%*d|%.*f|%10s|%-10s|\nplain\n", 6, 12, 2,
                        2.71828, "right", "left");
  const std::string lines = printed_by([&] {
    print_lines<<<3, 40>>>();
    CHECK_CUDA(cudaDeviceSynchronize());
  });
  bool right =
      text == wanted && result.host()[0] == 0 && std::count(lines.begin(), lines.end(), '\n') == 3 * 14;
  for (int block = 0; block < 3; ++block)
    for (int thread = 0; thread < 40; thread += 3)
      right = right && lines.find("thread " + std::to_string(thread) + " of block " + std::to_string(block) +
                                  "\n") != std::string::npos;
  return right;
}

// Lambdas, templates, local arrays, switch.

template <class F>
__global__ void for_each_index(int n, F f) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) f(i);
}

template <int n, class T>
__host__ __device__ T polynomial(const T (&c)[n], T x) {
  if constexpr (n == 1) {
    return c[0];
  } else {
    T tail[n - 1];
    for (int i = 1; i < n; ++i) tail[i - 1] = c[i];
    return c[0] + x * polynomial<n - 1>(tail, x);
  }
}

/// A stack machine: its stack is an array with computed indices, its program bytes.
__host__ __device__ int interpret(const unsigned char* code, int length, int argument) {
  int stack[16], top = 0;
  stack[top++] = argument;
  for (int i = 0; i < length; ++i) {
    switch (code[i] % 9) {
      case 0:
        stack[top++] = i;
        break;
      case 1:
        stack[top++] = argument;
        break;
      case 2:
        if (top > 1) {
          --top;
          stack[top - 1] += stack[top];
        }
        break;
      case 3:
        if (top > 1) {
          --top;
          stack[top - 1] -= stack[top];
        }
        break;
      case 4:
        if (top > 1) {
          --top;
          stack[top - 1] *= stack[top];
        }
        break;
      case 5:
        stack[top - 1] = -stack[top - 1];
        break;
      case 6:
        stack[0] ^= stack[top - 1];
        break;
      case 7:
        stack[top - 1] = stack[(stack[top - 1] & 0x7fffffff) % top];
        break;
      default:
        return stack[top - 1];
    }
    if (top == 16) top = 8;
  }
  return stack[top - 1];
}

bool lambdas_templates_arrays() {
  const int n = 1000, length = 24;
  const std::vector<unsigned> words = random_words(n * length, 1 << 20);
  const std::vector<unsigned char> code(words.begin(), words.end());
  DeviceVector<unsigned char> device_code(code);
  DeviceVector<int> results(n), values(n);
  for_each_index<<<3, 96>>>(n, [c = device_code.data(), r = results.data()] __device__(int i) {
    r[i] = interpret(c + i * length, length - i % 7, i * 1001);
  });
  for_each_index<<<2, 128>>>(n, [v = values.data(), factor = 3] __device__(int i) {
    const int c[4] = {i, factor, -2, 5};
    v[i] = polynomial(c, i % 11);
  });
  const std::vector<int> r = results.host(), v = values.host();
  bool right = true;
  for (int i = 0; i < n; ++i) {
    const int c[4] = {i, 3, -2, 5};
    right = right && r[i] == interpret(code.data() + i * length, length - i % 7, i * 1001) &&
            v[i] == polynomial(c, i % 11);
  }
  return right;
}

// Integers.

struct Integers {
  std::uint32_t bits, reversed, leading, first, permuted, dot_s, dot_u, left, right, right_clamped, high_u,
      sum_of_differences, mad24, distance;
  std::int32_t high_s, average;
  std::uint64_t bits64, reversed64, leading64, high64, quotient, remainder;
  std::int64_t quotient_s, remainder_s, high64_s;
};

__global__ void integer_functions(const std::uint32_t* words, Integers* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const std::uint32_t a = words[4 * i], b = words[4 * i + 1], c = words[4 * i + 2], d = words[4 * i + 3];
  const std::uint64_t ab = static_cast<std::uint64_t>(a) << 32 | b,
                      cd = static_cast<std::uint64_t>(c) << 32 | d;
  const std::uint64_t divisor = (cd >> (d & 63)) | 1;
  const std::int64_t divisor_s = (static_cast<std::int64_t>(cd) >> (d & 63)) | 1;
  Integers r;
  r.bits = __popc(a);
  r.reversed = __brev(a);
  r.leading = __clz(a >> (b & 31));
  r.first = __ffs(a << (b & 31));
  r.permuted = __byte_perm(a, b, c & 0x7777);
  r.dot_s = __dp4a(static_cast<int>(a), static_cast<int>(b), static_cast<int>(c));
  r.dot_u = __dp4a(a, b, c);
  r.left = __funnelshift_l(a, b, c);
  r.right = __funnelshift_r(a, b, c);
  r.right_clamped = __funnelshift_rc(a, b, c & 63);
  r.high_u = __umulhi(a, b);
  r.sum_of_differences = __usad(a, b, c);
  r.distance = __sad(static_cast<int>(a), static_cast<int>(b), c);
  r.mad24 = __umul24(a, b) + c;
  r.high_s = __mulhi(static_cast<int>(a), static_cast<int>(b));
  r.average = __rhadd(static_cast<int>(a), static_cast<int>(b));
  r.bits64 = __popcll(ab);
  r.reversed64 = __brevll(ab);
  r.leading64 = __clzll(ab >> (c & 63));
  r.high64 = __umul64hi(ab, cd);
  r.quotient = ab / divisor;
  r.remainder = ab % divisor;
  r.quotient_s = static_cast<std::int64_t>(ab) / divisor_s;
  r.remainder_s = static_cast<std::int64_t>(ab) % divisor_s;
  r.high64_s = __mul64hi(ab, cd);
  out[i] = r;
}

/// The same by their definitions.
Integers integers_on_host(const std::uint32_t* words) {
  const std::uint32_t a = words[0], b = words[1], c = words[2], d = words[3];
  const std::uint64_t ab = static_cast<std::uint64_t>(a) << 32 | b,
                      cd = static_cast<std::uint64_t>(c) << 32 | d;
  const std::uint64_t divisor = (cd >> (d & 63)) | 1;
  const std::int64_t divisor_s = (static_cast<std::int64_t>(cd) >> (d & 63)) | 1;
  const std::uint64_t ba = static_cast<std::uint64_t>(b) << 32 | a;
  const auto bit_count = [](std::uint64_t v) {
    int count = 0;
    for (; v; v &= v - 1) ++count;
    return count;
  };
  const auto reverse = [](std::uint64_t v, int width) {
    std::uint64_t r = 0;
    for (int i = 0; i < width; ++i) r |= (v >> i & 1) << (width - 1 - i);
    return r;
  };
  const auto leading_zeros = [](std::uint64_t v, int width) {
    int count = 0;
    while (count < width && !(v >> (width - 1 - count) & 1)) ++count;
    return count;
  };
  Integers r;
  r.bits = bit_count(a);
  r.reversed = reverse(a, 32);
  r.leading = leading_zeros(a >> (b & 31), 32);
  const std::uint32_t shifted = a << (b & 31);
  r.first = shifted ? leading_zeros(reverse(shifted, 32), 32) + 1 : 0;
  r.permuted = r.dot_u = r.dot_s = 0;
  for (int k = 0; k < 4; ++k) {
    r.permuted |= static_cast<std::uint32_t>(ba >> (8 * (c >> (4 * k) & 7)) & 0xff) << (8 * k);
    r.dot_u += (a >> (8 * k) & 0xff) * (b >> (8 * k) & 0xff);
    r.dot_s += static_cast<std::int8_t>(a >> (8 * k)) * static_cast<std::int8_t>(b >> (8 * k));
  }
  r.dot_u += c;
  r.dot_s += c;
  r.left = ba << (c & 31) >> 32;
  r.right = ba >> (c & 31);
  r.right_clamped = ba >> std::min(c & 63, 32u);
  r.high_u = static_cast<std::uint64_t>(a) * b >> 32;
  r.sum_of_differences = (a > b ? a - b : b - a) + c;
  r.distance = (static_cast<std::int32_t>(a) > static_cast<std::int32_t>(b) ? a - b : b - a) + c;
  r.mad24 = (a & 0xffffff) * (b & 0xffffff) + c;
  r.high_s = static_cast<std::int64_t>(static_cast<std::int32_t>(a)) * static_cast<std::int32_t>(b) >> 32;
  r.average =
      (static_cast<std::int64_t>(static_cast<std::int32_t>(a)) + static_cast<std::int32_t>(b) + 1) >> 1;
  r.bits64 = bit_count(ab);
  r.reversed64 = reverse(ab, 64);
  r.leading64 = leading_zeros(ab >> (c & 63), 64);
  r.high64 = static_cast<unsigned __int128>(ab) * cd >> 64;
  r.quotient = ab / divisor;
  r.remainder = ab % divisor;
  r.quotient_s = static_cast<std::int64_t>(ab) / divisor_s;
  r.remainder_s = static_cast<std::int64_t>(ab) % divisor_s;
  r.high64_s = static_cast<__int128>(static_cast<std::int64_t>(ab)) * static_cast<std::int64_t>(cd) >> 64;
  return r;
}
bool integers() {
  const int n = 2000;
  std::vector<std::uint32_t> words = random_words(4 * n);
  for (int i = 0; i < 200; ++i)
    words[7 * i] = i % 5 == 0 ? 0 : i % 5 == 1 ? ~0u : i % 5 == 2 ? 1u << i % 32 : words[7 * i] % 9;
  // The smallest integer divided by -1 has no quotient.
  for (int i = 0; i < n; ++i)
    if (words[4 * i] == 1u << 31 && words[4 * i + 1] == 0) words[4 * i + 1] = 1;
  DeviceVector<std::uint32_t> in(words);
  DeviceVector<Integers> out(n);
  integer_functions<<<(n + 127) / 128, 128>>>(in.data(), out.data(), n);
  const std::vector<Integers> found = out.host();
  for (int i = 0; i < n; ++i) {
    const Integers a = found[i], b = integers_on_host(&words[4 * i]);
    const bool same =
        a.bits == b.bits && a.reversed == b.reversed && a.leading == b.leading && a.first == b.first &&
        a.permuted == b.permuted && a.dot_s == b.dot_s && a.dot_u == b.dot_u && a.left == b.left &&
        a.right == b.right && a.right_clamped == b.right_clamped && a.high_u == b.high_u &&
        a.sum_of_differences == b.sum_of_differences && a.distance == b.distance && a.mad24 == b.mad24 &&
        a.high_s == b.high_s && a.average == b.average && a.bits64 == b.bits64 &&
        a.reversed64 == b.reversed64 && a.leading64 == b.leading64 && a.high64 == b.high64 &&
        a.quotient == b.quotient && a.remainder == b.remainder && a.quotient_s == b.quotient_s &&
        a.remainder_s == b.remainder_s && a.high64_s == b.high64_s;
    if (!same) return false;
  }
  return true;
}

// Floating point.

/// The distance of a value from the exact one rounded to T, in units of the last place of T there.
template <class T>
double ulps(T value, double exact) {
  const T rounded = static_cast<T>(exact);
  if (std::isnan(rounded)) return std::isnan(value) ? 0 : INFINITY;
  if (rounded == value) return 0;
  const int exponent = std::max(std::ilogb(rounded), std::numeric_limits<T>::min_exponent - 1);
  return std::abs(static_cast<double>(value) - rounded) /
         std::ldexp(1.0, exponent - std::numeric_limits<T>::digits + 1);
}

const int functions = 20;
/// Bounds in ulp, by the tables of mathematical functions in the CUDA programming guide.
const double float_bounds[functions] = {1, 2, 2, 2, 1, 2, 2, 3, 3, 4, 2, 2, 2, 1, 3, 1, 3, 4, 4, 1};
const double double_bounds[functions] = {1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 1, 3, 1, 2, 5, 2, 2};

/// Function k at x > 0; y is a second argument. The host's T is double where the exact value is wanted.
template <class T>
__host__ __device__ T function(int k, T x, T y) {
  switch (k) {
    case 0:
      return std::sqrt(x);
    case 1:
      return std::exp(y);
    case 2:
      return exp2(y);
    case 3:
      return std::log(x);
    case 4:
      return std::log2(x);
    case 5:
      return std::log10(x);
    case 6:
      return std::sin(y);
    case 7:
      return std::cosh(y);
    case 8:
      return std::atan2(x, y);
    case 9:
      return std::tan(y);
    case 10:
      return std::tanh(y);
    case 11:
      return std::erf(y);
    case 12:
      return std::cos(y);
    case 13:
      return std::cbrt(x);
    case 14:
      return std::asinh(y);
    case 15:
      return std::log1p(x);
    case 16:
      return std::hypot(x, y);
    case 17:
      return std::erfc(y);
    case 18:
      return std::pow(x, y);
    default:
      return std::expm1(y);
  }
}
template <class T>
__global__ void evaluate(const T* x, const T* y, T* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  for (int k = 0; k < functions; ++k) out[k * n + i] = function<T>(k, x[i], y[i]);
}
template <class T>
bool functions_within(const double (&bounds)[functions]) {
  const int n = 1500;
  const std::vector<unsigned> words = random_words(2 * n);
  std::vector<T> x(n), y(n);
  for (int i = 0; i < n; ++i) {
    x[i] = static_cast<T>(std::ldexp(words[i] + 1.0, static_cast<int>(words[i] % 12) - 36));  // to about 128
    y[i] = static_cast<T>(std::ldexp(words[n + i] + 1.0, -28) - 8) * (i % 3 == 0 ? T(0.01) : T(1));
  }
  DeviceVector<T> dx(x), dy(y), out(functions * n);
  evaluate<<<(n + 63) / 64, 64>>>(dx.data(), dy.data(), out.data(), n);
  const std::vector<T> found = out.host();
  bool right = true;
  for (int k = 0; k < functions; ++k) {
    double worst = 0;
    for (int i = 0; i < n; ++i) {
      worst = std::max(worst, ulps(found[k * n + i], function<double>(k, x[i], y[i])));
    }
    // The host's double is exact enough for float; for double the host's own error of an ulp comes on top.
    if (worst > bounds[k] + (sizeof(T) == 4 ? 0 : 1)) {
      std::printf("%s function %d: %g ulp\n", sizeof(T) == 4 ? "float" : "double", k, worst);
      right = false;
    }
  }
  return right;
}
bool mathematical_functions() {
  return functions_within<float>(float_bounds) & functions_within<double>(double_bounds);
}

__global__ void arithmetic(const float* a, const float* b, float* out, double* out64) {
  const int i = threadIdx.x;
  out[8 * i] = __fadd_ru(a[i], b[i]);
  out[8 * i + 1] = __fmul_rd(a[i], b[i]);
  out[8 * i + 2] = __fmaf_rz(a[i], b[i], a[i]);
  out[8 * i + 3] = __fdiv_rn(a[i], b[i]);
  out[8 * i + 4] = __fsqrt_rn(fabsf(a[i]));
  out[8 * i + 5] = __int2float_ru(__float_as_int(a[i]));
  out[8 * i + 6] = __double2float_rd(a[i] / 3.0);
  out[8 * i + 7] = fmodf(a[i], b[i]);
  out64[2 * i] = __ddiv_rn(a[i], b[i]);
  out64[2 * i + 1] = __dadd_rd(a[i], b[i] * 1e-14);
}
/// The float next to a double on the asked side: -1 below, 1 above, 0 towards zero.
float rounded(double v, int side) {
  const float f = static_cast<float>(v);
  if (side == 0) side = v < 0 ? 1 : -1;
  if (side > 0 && f < v) return std::nextafter(f, INFINITY);
  if (side < 0 && f > v) return std::nextafter(f, -INFINITY);
  return f;
}
bool stated_roundings() {
  const int n = 256;
  const std::vector<unsigned> words = random_words(2 * n);
  std::vector<float> a(n), b(n);
  for (int i = 0; i < n; ++i) {
    a[i] = static_cast<float>(static_cast<int>(words[i])) / (1 << 20);
    b[i] = static_cast<float>(static_cast<int>(words[n + i] | 1)) / (1 << 24);
  }
  DeviceVector<float> da(a), db(b), out(8 * n);
  DeviceVector<double> out64(2 * n);
  arithmetic<<<1, n>>>(da.data(), db.data(), out.data(), out64.data());
  const std::vector<float> f = out.host();
  const std::vector<double> d = out64.host();
  for (int i = 0; i < n; ++i) {
    const double x = a[i], y = b[i];
    std::int32_t bits;
    std::memcpy(&bits, &a[i], 4);
    const double low_sum = x + y * 1e-14;
    // The error of a sum by Knuth's two-sum says on which side the nearest double lies.
    const double part = low_sum - x, error = (x - (low_sum - part)) + (y * 1e-14 - part);
    const bool right =
        f[8 * i] == rounded(x + y, 1) && f[8 * i + 1] == rounded(x * y, -1) && f[8 * i + 3] == a[i] / b[i] &&
        f[8 * i + 4] == std::sqrt(std::abs(a[i])) && f[8 * i + 5] == rounded(bits, 1) &&
        f[8 * i + 6] == rounded(x / 3, -1) && f[8 * i + 7] == std::fmod(a[i], b[i]) && d[2 * i] == x / y &&
        d[2 * i + 1] == (error < 0 ? std::nextafter(low_sum, -INFINITY) : low_sum) &&
        std::abs(f[8 * i + 2]) <= std::abs(x * y + x) * (1 + 1e-12) && ulps(f[8 * i + 2], x * y + x) <= 1;
    if (!right) return false;
  }
  return true;
}

// Pictures.

__host__ __device__ int escape_time(double cx, double cy, int limit) {
  double x = 0, y = 0;
  int steps = 0;
  while (steps < limit && fma(x, x, y * y) < 4) {
    const double next = fma(x, x, fma(-y, y, cx));
    y = fma(2 * x, y, cy);
    x = next;
    ++steps;
  }
  return steps;
}
__global__ void mandelbrot(int* steps, int width, int height) {
  const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x < width && y < height) steps[y * width + x] = escape_time(x / 24.0 - 2.2, y / 20.0 - 1.2, 100);
}
bool mandelbrot_set() {
  const int width = 70, height = 50;
  DeviceVector<int> steps(width * height);
  mandelbrot<<<dim3(5, 7), dim3(16, 8)>>>(steps.data(), width, height);
  const std::vector<int> found = steps.host();
  for (int y = 0; y < height; ++y)
    for (int x = 0; x < width; ++x)
      if (found[y * width + x] != escape_time(x / 24.0 - 2.2, y / 20.0 - 1.2, 100)) return false;
  return true;
}

__constant__ int sobel_x[3][3] = {{-1, 0, 1}, {-2, 0, 2}, {-1, 0, 1}};

/// Box blur of 5 x 5 pixels and Sobel gradient from a tile with a rim of two pixels; pixels outside repeat the edge.
__global__ void filter(const uchar4* image, uchar4* blurred, int* gradient, int width, int height) {
  const int tile = 16, rim = 2, side = tile + 2 * rim;
  __shared__ uchar4 pixels[side][side + 1];
  const int x0 = blockIdx.x * tile, y0 = blockIdx.y * tile;
  for (int k = threadIdx.y * tile + threadIdx.x; k < side * side; k += tile * tile) {
    const int x = min(max(x0 + k % side - rim, 0), width - 1),
              y = min(max(y0 + k / side - rim, 0), height - 1);
    pixels[k / side][k % side] = image[y * width + x];
  }
  __syncthreads();
  const int x = x0 + threadIdx.x, y = y0 + threadIdx.y;
  if (x >= width || y >= height) return;
  int4 sum = make_int4(0, 0, 0, 0);
  for (int dy = 0; dy < 5; ++dy)
    for (int dx = 0; dx < 5; ++dx) {
      const uchar4 p = pixels[threadIdx.y + dy][threadIdx.x + dx];
      sum = make_int4(sum.x + p.x, sum.y + p.y, sum.z + p.z, sum.w + p.w);
    }
  blurred[y * width + x] = make_uchar4(sum.x / 25, sum.y / 25, sum.z / 25, sum.w / 25);
  int gx = 0, gy = 0;
  for (int dy = 0; dy < 3; ++dy)
    for (int dx = 0; dx < 3; ++dx) {
      const int grey = pixels[threadIdx.y + 1 + dy][threadIdx.x + 1 + dx].x;
      gx += sobel_x[dy][dx] * grey;
      gy += sobel_x[dx][dy] * grey;
    }
  gradient[y * width + x] = abs(gx) + abs(gy);
}
bool image_filters() {
  const int width = 75, height = 41;
  const std::vector<unsigned> words = random_words(width * height);
  std::vector<uchar4> image(width * height);
  std::memcpy(image.data(), words.data(), image.size() * sizeof(uchar4));
  DeviceVector<uchar4> in(image), blurred(image.size());
  DeviceVector<int> gradient(image.size());
  filter<<<dim3((width + 15) / 16, (height + 15) / 16), dim3(16, 16)>>>(in.data(), blurred.data(),
                                                                        gradient.data(), width, height);
  const std::vector<uchar4> b = blurred.host();
  const std::vector<int> g = gradient.host();
  const auto byte = [&](int x, int y, int channel) {
    x = std::clamp(x, 0, width - 1), y = std::clamp(y, 0, height - 1);
    return static_cast<int>(words[y * width + x] >> (8 * channel) & 0xff);
  };
  for (int y = 0; y < height; ++y)
    for (int x = 0; x < width; ++x) {
      int sum[4] = {};
      for (int k = 0; k < 25; ++k)
        for (int c = 0; c < 4; ++c) sum[c] += byte(x + k % 5 - 2, y + k / 5 - 2, c);
      int gx = 0, gy = 0;
      for (int d = -1; d <= 1; ++d) {
        const int weight = d == 0 ? 2 : 1;
        gx += weight * (byte(x + 1, y + d, 0) - byte(x - 1, y + d, 0));
        gy += weight * (byte(x + d, y + 1, 0) - byte(x + d, y - 1, 0));
      }
      const uchar4 p = b[y * width + x];
      if (p.x != sum[0] / 25 || p.y != sum[1] / 25 || p.z != sum[2] / 25 || p.w != sum[3] / 25) return false;
      if (g[y * width + x] != std::abs(gx) + std::abs(gy)) return false;
    }
  return true;
}

int main(int argc, char** argv) {
  return run_programs({{"function_pointers_and_constants", function_pointers_and_constants},
                       {"objects_and_recursion", objects_and_recursion},
                       {"printing", printing},
                       {"lambdas_templates_arrays", lambdas_templates_arrays},
                       {"integers", integers},
                       {"mathematical_functions", mathematical_functions},
                       {"stated_roundings", stated_roundings},
                       {"mandelbrot_set", mandelbrot_set},
                       {"image_filters", image_filters}},
                      argc, argv);
}
