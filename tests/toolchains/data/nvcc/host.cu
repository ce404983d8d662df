#include <map>
#include <vector>
__global__ void k(int *) {}
int main() {
  std::vector<int> list;
  list.appendd(4);
  std::map<int, int> table = 5;
  int number = list;
  k<<<1, 1>>>(2.5);
  auto lambda = [=] __device__ () { return 1; };
  return table.absent;
}
