// Algorithms and vectors of Thrust.
#include <thrust/device_vector.h>
#include <thrust/functional.h>
#include <thrust/iterator/counting_iterator.h>
#include <thrust/reduce.h>
#include <thrust/scan.h>
#include <thrust/sort.h>
#include <thrust/transform_reduce.h>
#include <cub/device/device_merge_sort.cuh>

#include <algorithm>
#include <map>
#include <numeric>

#include "program.h"

const int count = 20'011;

bool sort_and_transform() {
  std::vector<unsigned> words = random_words(count);
  thrust::device_vector<unsigned> device(words.begin(), words.end());
  thrust::transform(device.begin(), device.end(), thrust::counting_iterator<unsigned>(0), device.begin(),
                    [] __device__(unsigned v, unsigned i) { return v / 3 + i; });
  thrust::sort(device.begin(), device.end(), thrust::greater<unsigned>());
  for (int i = 0; i < count; ++i) words[i] = words[i] / 3 + i;
  std::sort(words.rbegin(), words.rend());
  std::vector<unsigned> found(count);
  thrust::copy(device.begin(), device.end(), found.begin());
  return found == words;
}

bool reduce_and_scan() {
  const std::vector<unsigned> words = random_words(count, 1000);
  const thrust::device_vector<unsigned> device(words.begin(), words.end());
  thrust::device_vector<unsigned> sums(count);
  thrust::inclusive_scan(device.begin(), device.end(), sums.begin());
  const unsigned long long squares = thrust::transform_reduce(
      device.begin(), device.end(),
      [] __device__(unsigned v) -> unsigned long long { return static_cast<unsigned long long>(v) * v; },
      0ull, thrust::plus<unsigned long long>());
  std::vector<unsigned> wanted(count), found(count);
  std::partial_sum(words.begin(), words.end(), wanted.begin());
  thrust::copy(sums.begin(), sums.end(), found.begin());
  unsigned long long wanted_squares = 0;
  for (const unsigned v : words) wanted_squares += static_cast<unsigned long long>(v) * v;
  return found == wanted && squares == wanted_squares;
}

bool sums_by_key() {
  const std::vector<unsigned> words = random_words(count);
  std::vector<int> host_keys(count);
  for (int i = 0; i < count; ++i) host_keys[i] = static_cast<int>(words[i] % 37);
  thrust::device_vector<int> keys(host_keys), values(count), found_keys(count), found_sums(count);
  thrust::sequence(values.begin(), values.end());
  thrust::sort_by_key(keys.begin(), keys.end(), values.begin());
  const auto ends =
      thrust::reduce_by_key(keys.begin(), keys.end(), values.begin(), found_keys.begin(), found_sums.begin());
  std::map<int, int> wanted, found;
  for (int i = 0; i < count; ++i) wanted[host_keys[i]] += i;
  for (long i = 0; i < ends.first - found_keys.begin(); ++i) found[found_keys[i]] = found_sums[i];
  return found == wanted;
}

// Comparison sorts: merges that read one item beyond their tile and drop it.

struct Record {
  int key;
  double weight;
};

bool comparison_sorts() {
  for (const int size : {1, 100, 5000, 100'003}) {
    const std::vector<unsigned> words = random_words(size);
    const auto less = [] __host__ __device__(unsigned a, unsigned b) { return a % 1000 < b % 1000; };
    const auto greater = [] __host__ __device__(unsigned a, unsigned b) { return a > b; };

    thrust::device_vector<unsigned> device(words.begin(), words.end());
    thrust::sort(device.begin(), device.end(), greater);
    std::vector<unsigned> found(size), wanted = words;
    thrust::copy(device.begin(), device.end(), found.begin());
    std::sort(wanted.begin(), wanted.end(), greater);
    if (found != wanted) return false;

    thrust::device_vector<unsigned> keys(words.begin(), words.end()), values(size);
    thrust::sequence(values.begin(), values.end());
    thrust::stable_sort_by_key(keys.begin(), keys.end(), values.begin(), less);
    std::vector<unsigned> order(size);
    std::iota(order.begin(), order.end(), 0u);
    std::stable_sort(order.begin(), order.end(),
                     [&](unsigned a, unsigned b) { return less(words[a], words[b]); });
    thrust::copy(values.begin(), values.end(), found.begin());
    if (found != order) return false;

    std::vector<Record> records(size);
    for (int i = 0; i < size; ++i) records[i] = {static_cast<int>(words[i] % 5000), i * 0.5};
    DeviceVector<Record> device_records(records);
    const auto by_key = [] __host__ __device__(const Record& a, const Record& b) { return a.key < b.key; };
    std::size_t bytes = 0;
    CHECK_CUDA(cub::DeviceMergeSort::StableSortKeys(nullptr, bytes, device_records.data(), size, by_key));
    DeviceVector<char> room(bytes);
    CHECK_CUDA(cub::DeviceMergeSort::StableSortKeys(room.data(), bytes, device_records.data(), size, by_key));
    std::stable_sort(records.begin(), records.end(), by_key);
    const std::vector<Record> sorted = device_records.host();
    for (int i = 0; i < size; ++i)
      if (sorted[i].key != records[i].key || sorted[i].weight != records[i].weight) return false;
  }
  return true;
}

int main(int argc, char** argv) {
  return run_programs({{"sort_and_transform", sort_and_transform},
                       {"reduce_and_scan", reduce_and_scan},
                       {"sums_by_key", sums_by_key},
                       {"comparison_sorts", comparison_sorts}},
                      argc, argv);
}
