# All rules about which room may use which. A room is a folder with the folders below it; the most specific room
# applies. Its libraries and programs may link those of its own room and of the rooms that it names. A violation is a
# configure error (cmake/Layer.cmake). tools/layers checks #includes against the same lists.
#
#   nsa_room(FOLDER [MAY_USE FOLDER...])

function(nsa_room folder)
  cmake_parse_arguments(A "" "" "MAY_USE" ${ARGN})
  set_property(GLOBAL APPEND PROPERTY NSA_ROOMS ${folder})
  set_property(GLOBAL PROPERTY NSA_ROOM_${folder} ${folder} ${A_MAY_USE})
endfunction()

# The room of a folder is the longest room path that contains the folder.
function(nsa_room_of folder result)
  get_property(rooms GLOBAL PROPERTY NSA_ROOMS)
  set(found "")
  foreach(room ${rooms})
    string(FIND "${folder}/" "${room}/" at)
    string(LENGTH "${room}" length)
    string(LENGTH "${found}" best)
    if(at EQUAL 0 AND length GREATER best)
      set(found ${room})
    endif()
  endforeach()
  set(${result} "${found}" PARENT_SCOPE)
endfunction()

# Shared by all programs. Validation and the estimate use the plan of kernels, which is only arithmetic.
nsa_room(common MAY_USE common nsa_model/choice)
nsa_room(common/base)

# The model does not depend on runs, so it can be used without nsad.
nsa_room(nsa_model MAY_USE common/base)
nsa_room(nsa_model/choice)
nsa_room(nsa_model/reference)                              # it shares no code with the implementations that it checks
nsa_room(nsa_model/kernels MAY_USE nsa_model/choice)

# nsad, nsa-shim and their helpers do not depend on the model.
nsa_room(daemon MAY_USE common)
nsa_room(daemon/state MAY_USE common/base common/progress common/spec common/wire) # pure: no clock, no file
nsa_room(daemon/gates MAY_USE common/base common/spec)      # pure as well
nsa_room(daemon/plan MAY_USE common/base common/spec common/wire)
nsa_room(daemon/store MAY_USE common/base common/wire)
nsa_room(daemon/api MAY_USE common daemon/metrics)
nsa_room(daemon/cluster MAY_USE common/base common/net common/tls common/wire) # does not depend on runs
nsa_room(daemon/nodes MAY_USE common daemon/api daemon/cluster daemon/metrics daemon/proc daemon/run_loop
                              daemon/state daemon/store)
nsa_room(daemon/parts MAY_USE common daemon/cluster daemon/commands daemon/gpu daemon/plan daemon/privilege daemon/proc
                              daemon/run_loop daemon/run_metrics daemon/shim daemon/state daemon/store
                              daemon/supervision)
nsa_room(daemon/metrics MAY_USE common/base common/progress common/wire)
nsa_room(daemon/proc MAY_USE common/base)
nsa_room(daemon/gpu MAY_USE common/base)
nsa_room(daemon/hooks MAY_USE common/base common/net daemon/proc)
nsa_room(daemon/engines MAY_USE common daemon/proc daemon/run_loop daemon/state daemon/store)
nsa_room(daemon/shim MAY_USE common daemon/proc)           # outlives nsad, so it shares no state with nsad
nsa_room(daemon/privilege MAY_USE common daemon/proc daemon/shim)

# The control plane: requests and commands depend on the run loop, which does not depend on them.
nsa_room(daemon/run_loop MAY_USE common daemon/state daemon/store)
nsa_room(daemon/run_metrics MAY_USE common daemon/gates daemon/metrics daemon/proc daemon/run_loop daemon/state daemon/store)
nsa_room(daemon/supervision MAY_USE common daemon/gpu daemon/plan daemon/privilege daemon/proc daemon/run_loop
                                    daemon/shim daemon/state)
nsa_room(daemon/commands MAY_USE common daemon/gpu daemon/metrics daemon/plan daemon/privilege daemon/proc
                                 daemon/run_loop daemon/run_metrics daemon/shim daemon/state daemon/store
                                 daemon/supervision)
nsa_room(daemon/queries MAY_USE common daemon/api daemon/plan daemon/privilege daemon/run_loop daemon/run_metrics
                                daemon/state daemon/store)

# A rank. The layers above the step make decisions; those below it are the parts of a step.
nsa_room(worker MAY_USE common)
nsa_room(worker/comm MAY_USE common/base common/progress worker/mesh)
nsa_room(worker/faults MAY_USE common worker/link worker/rules)
nsa_room(worker/rules MAY_USE common nsa_model/choice nsa_model/model_config) # decisions without tensors
nsa_room(worker/runtime MAY_USE common/base common/progress common/spec worker/comm worker/graphs worker/mesh
                                worker/process_info)
nsa_room(worker/optimizer MAY_USE common nsa_model/ops worker/checkpoint worker/rules worker/runtime)
nsa_room(worker/profile MAY_USE common nsa_model/ops worker/graphs)
nsa_room(worker/step MAY_USE common nsa_model/ops worker/comm worker/data worker/graphs worker/link worker/mesh
                             worker/optimizer worker/profile worker/rules worker/runtime)
nsa_room(worker/model MAY_USE worker/comm common nsa_model worker/optimizer worker/rules worker/step)
nsa_room(worker/trainer MAY_USE common worker/checkpoint worker/comm worker/data worker/link
                                worker/mesh worker/optimizer worker/process_info worker/profile worker/rules worker/runtime
                                worker/step worker/telemetry)
nsa_room(worker/inference MAY_USE common nsa_model worker)
nsa_room(worker/bootstrap MAY_USE common nsa_model worker)

# No room uses these, except that nsa-fetch uses the words, help and exit codes of nsactl.
nsa_room(cli MAY_USE common)
nsa_room(fetch MAY_USE common cli)
nsa_room(bench MAY_USE common nsa_model worker)
nsa_room(bench/ranks MAY_USE common/base daemon/proc)      # starts ranks as nsa-shim does
