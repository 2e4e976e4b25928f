#define DC_ISA portable
#include "kernels/loops.h"
