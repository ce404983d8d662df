#include "not_there/tiles.cuh"
__global__ void k() {}
