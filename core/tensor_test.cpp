#include "core/tensor.h"

#include <doctest/doctest.h>

#include <cmath>

#include "core/allocator.h"
#include "tests/support/compare.h"

using namespace nemocube;
using nemocube::testing::random_tensor;

namespace {
Tensor counting(const Shape& shape) {
  Tensor t = Tensor::empty(shape, DType::f32, Device::cpu);
  for (std::int64_t i = 0; i < t.numel(); ++i) t.data<float>()[i] = static_cast<float>(i);
  return t;
}
}  // namespace

TEST_CASE("dtype: names and sizes") {
  CHECK(parse_dtype("torch.bfloat16") == DType::bf16);
  CHECK(parse_dtype("f64") == DType::f64);
  CHECK(size_of(DType::bf16) == 2);
  CHECK_THROWS_AS(parse_dtype("f8"), Error);
  CHECK_THROWS_AS(visit_float("op", DType::i64, [](auto) {}), Error);
}

TEST_CASE("bf16: rounds to nearest, ties to even, keeps infinities and NaN") {
  CHECK(static_cast<float>(bf16(1.0f)) == 1.0f);
  CHECK(static_cast<float>(bf16(1.0f + 0x1p-8f)) == 1.0f);                // tie, even below
  CHECK(static_cast<float>(bf16(1.0f + 3 * 0x1p-8f)) == 1.0f + 0x1p-6f);  // tie, even above
  CHECK(static_cast<float>(bf16(1.0f + 0x1.8p-8f)) == 1.0f + 0x1p-7f);
  CHECK(static_cast<float>(bf16(-INFINITY)) == -INFINITY);
  CHECK(std::isnan(static_cast<float>(bf16(std::bit_cast<float>(0x7f800001u)))));
  CHECK(std::isinf(static_cast<float>(bf16(3.4e38f))));
}

TEST_CASE("tensor: views share storage and keep rows apart") {
  const Tensor t = counting({2, 3, 8});
  const Tensor right = t.narrow(-1, 5, 3);
  CHECK(right.shape() == Shape{2, 3, 3});
  CHECK(right.row_stride() == 8);
  CHECK_FALSE(right.contiguous());
  CHECK(right.row<float>(4)[0] == 37);
  CHECK(right.reshape({6, 3}).row<float>(5)[2] == 47);
  CHECK_THROWS_AS(right.reshape({18}), std::logic_error);
  const Tensor second = t.select(1);
  CHECK(second.shape() == Shape{3, 8});
  CHECK(second.row<float>(0)[0] == 24);
  second.fill(-1);
  CHECK(t.row<float>(3)[0] == -1);
  CHECK(t.row<float>(2)[7] == 23);
}

TEST_CASE("tensor: narrow along inner dimensions where rows stay evenly spaced") {
  const Tensor t = counting({4, 3, 2});
  const Tensor middle = t.narrow(1, 1, 1);  // one row of each outer entry
  CHECK(middle.row_stride() == 6);
  CHECK(middle.row<float>(3)[1] == 21);
  CHECK_THROWS_AS(t.narrow(1, 0, 2), std::logic_error);
  CHECK(t.narrow(0, 2, 2).row<float>(0)[0] == 12);
  CHECK_THROWS_AS(t.narrow(0, 3, 2), std::logic_error);
}

TEST_CASE("tensor: reshape fills in one open dimension") {
  CHECK(counting({4, 6}).reshape({-1, 8}).shape() == Shape{3, 8});
  CHECK(Tensor::empty({0, 6}, DType::f32, Device::cpu).reshape({0, 2, 3}).numel() == 0);
  CHECK_THROWS_AS(counting({4, 6}).reshape({5, 5}), std::logic_error);
}

TEST_CASE("tensor: conversion and copies between strided views") {
  const Tensor t = counting({5, 40});
  const Tensor b = t.narrow(1, 3, 33).to(DType::bf16);
  CHECK(b.contiguous());
  CHECK(static_cast<float>(b.row<bf16>(2)[1]) == 84);
  const Tensor back = Tensor::zeros({5, 40}, DType::f32, Device::cpu);
  back.narrow(1, 3, 33).copy_from(b);
  CHECK(back.row<float>(1)[3] == 43);
  CHECK(back.row<float>(1)[2] == 0);
  CHECK(back.row<float>(1)[36] == 0);
  const Tensor big = random_tensor({16384 * 3}, DType::f32, 1);  // copied in slices
  CHECK_BITS(big.clone(), big);
}

TEST_CASE("tensor: meta tensors have a shape and no memory") {
  const auto before = allocator(Device::cpu).stats().current_bytes;
  const Tensor t = Tensor::meta({131072, 8192, 1000}, DType::bf16);
  CHECK(t.numel() == std::int64_t{131072} * 8192 * 1000);
  CHECK(t.narrow(0, 5, 10).dim(0) == 10);
  CHECK(allocator(Device::cpu).stats().current_bytes == before);
  CHECK_THROWS_AS(t.address(), std::logic_error);
}

TEST_CASE("tensor: wrong dtype and shape are refused") {
  const Tensor t = counting({2, 2});
  CHECK_THROWS_AS(t.data<double>(), std::logic_error);
  CHECK_THROWS_AS(check_shape("x", t, {2, 3}), Error);
  CHECK_THROWS_AS(check_dtype("x", t, DType::bf16), Error);
  CHECK_THROWS_AS(check_shape("x", Tensor(), {1}), Error);
  CHECK_THROWS_AS(Tensor::empty({-1}, DType::f32, Device::cpu), std::logic_error);
}

TEST_CASE(
    "storage: memory given back is missed by no one who does not look, and comes back for all who share it") {
  const Tensor whole = counting({4, 1000}), view = whole.narrow(0, 1, 2).reshape({2000});
  const std::int64_t before = allocator(Device::cpu).stats().current_bytes;
  whole.storage()->release();
  whole.storage()->release();  // once is enough
  CHECK(allocator(Device::cpu).stats().current_bytes < before);
  CHECK(view.numel() == 2000);
  CHECK_THROWS_WITH_AS((void)view.data<float>(), doctest::Contains("given back"), std::logic_error);
  whole.storage()->restore();
  CHECK(allocator(Device::cpu).stats().current_bytes == before);
  whole.fill(3);
  CHECK(view.to_vector() == std::vector<double>(2000, 3.0));
  float borrowed = 1;
  CHECK_THROWS_AS(Tensor::borrow(&borrowed, {1}, DType::f32, nullptr).storage()->release(), std::logic_error);
}
