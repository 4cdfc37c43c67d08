// Addresses of shared memory. A CTA has its dynamic shared memory at kSharedBase and, after a gap,
// the __shared__ variables of all kernels of the program. Those are ordinary variables in one
// section (shared_variables.ld); each CTA has a copy, which is moved there before one of its
// threads runs.

#include <cstring>

#include "dsv4/base/bits.h"
#include "tests/emulator/instructions.h"
#include "tests/emulator/machine.h"

extern "C" std::byte dsv4_shared_begin[], dsv4_shared_end[];

namespace dsv4::emulator {
namespace {

constexpr int64_t kGap = 1024;

size_t variables_bytes() {
  return static_cast<size_t>(dsv4_shared_end - dsv4_shared_begin);
}
bool is_variable(const void* at) {
  return at >= dsv4_shared_begin && at < dsv4_shared_end;
}
uint32_t variables_base(const Cta& cta) {
  const auto dynamic = static_cast<int64_t>(launch_of(cta).shared);
  return kSharedBase + static_cast<uint32_t>(align_up(dynamic, kGap) + kGap);
}

}  // namespace

size_t shared_span(const Cta& cta) {
  return variables_base(cta) - kSharedBase + variables_bytes();
}

void start_shared_memory(Cta& cta) {
  const size_t dynamic = launch_of(cta).shared;
  cta.memory = std::make_unique<Pages>(dynamic == 0 ? 1 : dynamic);
  std::memset(cta.memory->data(), 0xff, cta.memory->size());
  cta.variables.assign(variables_bytes(), std::byte{0xff});
  cta.writes.resize(shared_span(cta) / 16 + 1);
}

void Machine::bring_variables(Cta& next) {
  if (in_place_ == &next || variables_bytes() == 0) return;
  if (in_place_ != nullptr)
    std::memcpy(in_place_->variables.data(), dsv4_shared_begin, variables_bytes());
  std::memcpy(dsv4_shared_begin, next.variables.data(), variables_bytes());
  in_place_ = &next;
}

std::byte* Machine::shared(std::string_view op, Cta& cta, uint32_t address, size_t size,
                           size_t align) {
  if (address / kSharedWindow == static_cast<uint32_t>(cta.rank)) address %= kSharedWindow;
  if (address % align != 0)
    kernel_error("{}: shared address {} is not a multiple of {}", op, address, align);
  const size_t dynamic = launch_of(cta).shared, end = address + size;
  const bool variable =
      address >= variables_base(cta) && end <= variables_base(cta) + variables_bytes();
  if (!variable && (address < kSharedBase || end > kSharedBase + dynamic))
    kernel_error("{}: shared address {} + {} is outside {} .. {}", op, address, size, kSharedBase,
                 kSharedBase + dynamic);
  return at({&cta, address});
}

std::byte* Machine::at(const Place& place) {
  Cta& cta = *place.cta;
  if (place.address < variables_base(cta))
    return cta.memory->data() + (place.address - kSharedBase);
  std::byte* variables = &cta == in_place_ ? dsv4_shared_begin : cta.variables.data();
  return variables + (place.address - variables_base(cta));
}

bool Machine::in_shared(const void* pointer) {
  const auto* at = static_cast<const std::byte*>(pointer);
  const std::byte* dynamic = cta().memory->data();
  return is_variable(at) || (at >= dynamic && at < dynamic + launch_of(cta()).shared);
}

uint32_t Machine::address_of(const Cta& cta, const void* pointer) {
  const auto* at = static_cast<const std::byte*>(pointer);
  return static_cast<uint32_t>(is_variable(at) ? variables_base(cta) + (at - dsv4_shared_begin)
                                               : kSharedBase + (at - cta.memory->data()));
}

Place Machine::place_of(std::string_view op, const void* pointer) {
  const std::byte* end = cta().memory->data() + launch_of(cta()).shared;
  if (!in_shared(pointer) && pointer != end)
    kernel_error("{}: a pointer that is not to shared memory of its CTA", op);
  return {&cta(), address_of(cta(), pointer)};
}

Place Machine::in_cluster(std::string_view op, const Place& place, uint32_t rank) {
  auto& ctas = cta().cluster->ctas;
  if (rank >= ctas.size()) kernel_error("{} in CTA {} of its cluster", op, rank);
  Cta& there = ctas[rank];
  if (!current->cluster_synced)
    kernel_error("{} in CTA {} without a cluster_wait before", op, there.index);
  if (there.running == 0) kernel_error("{} in CTA {}, which has ended", op, there.index);
  return {&there, place.address};
}

uint32_t shared_address(const void* pointer) {
  const Instruction instruction;
  const Place place = machine().place_of("shared address", pointer);
  return static_cast<uint32_t>(place.cta->rank) * kSharedWindow + place.address;
}
// Only an address: accesses to it are checked by the instruction that takes it.
uint32_t shared_address_in_cluster(const void* pointer, uint32_t rank) {
  const Instruction instruction;
  const Place place = machine().place_of("mapa", pointer);
  if (rank >= place.cta->cluster->ctas.size()) kernel_error("mapa to CTA {} of its cluster", rank);
  return rank * kSharedWindow + place.address;
}
unsigned char* block_memory() {
  return reinterpret_cast<unsigned char*>(machine().cta().memory->data());
}

}  // namespace dsv4::emulator
