#define DC_ISA avx2
#include "kernels/loops.h"
