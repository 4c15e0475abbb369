// Ranks as threads of one process: frames travel through an inbox a rank, payloads are read
// straight from the sender's memory.
//
// Terms: hub: what the ranks of one view share; loan: payload in the sender's memory, which the
//        receiver may read until it gives it back or the sender closes; small payloads are
//        copied.
// Threads: each rank's Transport follows the rules of kf/transport.h; ranks may be on any
// thread.
//        Lock order: a loan before an inbox.
#pragma once

#include <memory>

#include "kf/transport.h"

namespace kf {

class InprocHub;

std::shared_ptr<InprocHub> make_inproc_hub(int world_size);  // Throws Error{usage} below 1
// The end of one rank; made once for every rank.
std::unique_ptr<Transport> make_inproc_transport(std::shared_ptr<InprocHub> hub, int rank);

}  // namespace kf
