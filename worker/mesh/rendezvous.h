// The interface by which ranks find each other, independent of the transport.
#pragma once

#include "common/base/clock.h"
#include "common/base/result.h"

#include <string>

namespace nsa::comm {

// A table of strings that all ranks of an attempt share. In production rank 0 serves it (store.h).
class Rendezvous {
public:
  virtual ~Rendezvous() = default;
  virtual Status publish(const std::string& key, const std::string& value) = 0;
  // Errors: kExhausted if nobody published the key in time; kUnavailable if the server is gone, so
  // no key can arrive any more.
  virtual Result<std::string> wait_for(const std::string& key, Duration limit) = 0;
};

} // namespace nsa::comm
