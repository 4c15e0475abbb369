#include "worlds.h"

#include <exception>
#include <mutex>
#include <thread>

#include "kf/error.h"
#include "kf/host.h"
#include "kf/inproc.h"
#include "kf/tcp.h"

namespace kf::testing {

View view_of(int world_size, std::int64_t version) {
  View view{version, {}};
  for (int r = 0; r < world_size; ++r) view.members.push_back("member-" + std::to_string(r));
  return view;
}

Clock::time_point soon(double seconds) {
  return Clock::now() +
         std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

void run_world(int world_size, const WorldOptions& options, const RankFn& fn) {
  const View view = view_of(world_size);
  const bool connected = options.transport != "inproc";
  const bool mixed = options.transport == "mixed";
  const auto hub = make_inproc_hub(world_size);
  std::vector<TcpListener> listeners;
  std::vector<std::string> addresses;
  for (int r = 0; connected && r < world_size; ++r) {
    listeners.emplace_back(options.host, 0);
    addresses.push_back(listeners.back().address());
  }
  std::mutex mutex;
  std::exception_ptr cause;
  std::exception_ptr consequence;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        std::unique_ptr<Transport> transport;
        if (connected) {
          HostOptions host;
          host.share_memory = options.transport != "tcp";
          host.attach = options.attach;
          host.registered = options.registered;
          if (mixed) host.identity = rank % 2 == 0 ? "even" : "odd";
          transport = connect_host(listeners[static_cast<std::size_t>(rank)],
                                   {view, rank, "job", "secret", addresses, soon(), {}}, host)
                          .transport;
        } else {
          transport = make_inproc_transport(hub, rank);
        }
        Session session(view, rank, std::move(transport), options.session);
        fn(session);
        if (options.close) session.close();
      } catch (const Error& error) {
        const std::lock_guard lock(mutex);
        const bool root = error.code() != ErrorCode::peer_lost;
        auto& slot = root ? cause : consequence;
        if (!slot) slot = std::current_exception();
      } catch (...) {
        const std::lock_guard lock(mutex);
        cause = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (cause) std::rethrow_exception(cause);
  if (consequence) std::rethrow_exception(consequence);
}

}  // namespace kf::testing
