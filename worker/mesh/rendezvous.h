// How ranks find each other, whatever carries it.
#pragma once

#include "common/base/clock.h"
#include "common/base/result.h"

#include <string>

namespace nsa::comm {

// A table of texts that all ranks of an attempt share. In production rank 0 serves it (store.h).
class Rendezvous {
public:
  virtual ~Rendezvous() = default;
  virtual Status publish(const std::string& key, const std::string& value) = 0;
  // kExhausted: nobody published it in time. kUnavailable: whoever serves the table is gone, so no
  // key can come any more.
  virtual Result<std::string> wait_for(const std::string& key, Duration limit) = 0;
};

} // namespace nsa::comm
