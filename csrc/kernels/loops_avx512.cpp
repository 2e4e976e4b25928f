#define DC_ISA avx512
#include "kernels/loops.h"
