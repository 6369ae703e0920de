"""What the notebooks of ``notebooks/`` import: engines, faults as content, pictures, exercises.

    from numba_deform.course import lessons
    from numba_deform.course.lessons import lesson1 as check
    from numba_deform.course.lessons import pictures

    engine = lessons.engine()                                  # "gpu" or "cpu"
    lessons.run(kernel, 1, (maps, out, x, y), engine=engine)   # on either, arrays changed in place
    lessons.show_fault(lambda: lessons.run(...))               # a fault is shown, not raised
    lessons.slider(draw, x=range(-8, 40))                      # a slider where there is a live notebook
    check.box_origin(answer)                                   # an exercise: says what is wrong in words

Drawings are in ``pictures``, earlier measurements in ``results``; exercises are made with ``exercise``, and
the checks of lesson N are in ``lessonN``.
"""

from .running import Ran, cpu_only, engine, feature_map, machine_code, run, show_fault, slider

__all__ = ["Ran", "cpu_only", "engine", "feature_map", "machine_code", "run", "show_fault", "slider"]
