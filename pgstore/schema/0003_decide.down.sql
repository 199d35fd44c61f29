drop function if exists dipwell.retire, dipwell.sweep_at, dipwell.settled, dipwell.make_room, dipwell.give_back, dipwell.decide, dipwell.answer_one;
drop type if exists dipwell.answer;
