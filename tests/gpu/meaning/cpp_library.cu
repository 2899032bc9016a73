// The translation unit that becomes a static library for cpp.cu.
#define UNIT library
#include "cpp_unit.cu"
